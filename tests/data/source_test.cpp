#include "unsloth/data/source.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/data/dataset.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

struct Tree {
    toy::Folder folder;
    fs::path root;

    explicit Tree(const std::vector<std::string>& files) {
        root = folder.write(".root", "").parent_path();
        for (const std::string& name : files) {
            fs::create_directories((root / name).parent_path());
            folder.write(name, cat("{\"text\": \"", name, "\"}\n"));
        }
    }
    std::vector<std::string> found(const std::string& path, const std::string& split = {}) const {
        std::vector<std::string> names;
        for (const fs::path& file : files_of((root / path).string(), split))
            names.push_back(file.lexically_relative(root).string());
        return names;
    }
};

using Names = std::vector<std::string>;

TEST(FilesOf, FilesFoldersAndGlobs) {
    const Tree tree({"b.jsonl", "a.json", "sub/c.csv.gz", "sub/_old.jsonl", ".git/d.jsonl", "README.md",
                     "dataset_info.json", "x.pdf"});
    EXPECT_EQ(tree.found("b.jsonl"), Names{"b.jsonl"});
    EXPECT_EQ(tree.found("README.md"), Names{"README.md"});  // named, so taken
    EXPECT_EQ(tree.found(""), (Names{"a.json", "b.jsonl", "sub/c.csv.gz"}));
    EXPECT_EQ(tree.found("*.json*"), (Names{"a.json", "b.jsonl", "dataset_info.json"}));
    EXPECT_EQ(tree.found("s*"), Names{"sub/c.csv.gz"});
    toy::expect_contains(toy::message_of("data.no-files", [&] { tree.found("*.parquet"); }),
                         {"*.parquet", "no file matches"});
    fs::create_directory(tree.root / "empty");
    toy::expect_contains(toy::message_of("data.no-files", [&] { tree.found("empty"); }), {"empty", "no file of rows"});
    const auto odd = tree.folder.write("a[1].jsonl", "{\"text\": \"x\"}");  // a file whose name looks like a glob
    EXPECT_EQ(files_of(odd.string(), ""), std::vector<fs::path>{odd});
}

TEST(FilesOf, TextsAboutTheFolderAreNoData) {
    const Tree tree({"a.txt", "LICENSE.txt", "README.txt", "Notice_third-party.txt", "requirements.txt", "licensed.txt",
                     "sub/LICENCE-MIT.txt", "readme.jsonl", "about/CHANGELOG.txt"});
    EXPECT_EQ(tree.found(""), (Names{"a.txt", "licensed.txt", "readme.jsonl"}));
    EXPECT_EQ(tree.found("LICENSE.txt"), Names{"LICENSE.txt"});  // named, so taken
    toy::expect_contains(toy::message_of("data.no-files", [&] { tree.found("about"); }), {"no file of rows"});
}

TEST(Sources, FilesOfAFolderMustAgreeOnAFormat) {
    const toy::Folder folder;
    folder.write("a.jsonl", "{\"text\": \"0\"}\n");
    folder.write("b.jsonl", "\n");
    folder.write("c.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}\n");
    const std::string path = folder.path().string();
    const toy::Encoder encoder;
    const auto load = [&](config::DataFormat format) {
        return Dataset::load({{.path = path, .format = format}}, {}, [&](const std::string&) { return &encoder; });
    };
    toy::expect_contains(toy::message_of("data.mixed-formats", [&] { load(config::DataFormat::automatic); }),
                         {"not of one format", path + "/a.jsonl has rows of format text",
                          path + "/c.jsonl of format alpaca", "data.datasets"});
    folder.write("c.jsonl", "{\"text\": \"1\", \"more\": 2}\n");
    EXPECT_EQ(load(config::DataFormat::automatic).size(), 2);
    folder.write("c.jsonl", "{\"text\": \"1\", \"instruction\": \"a\", \"output\": \"b\"}\n");
    EXPECT_EQ(load(config::DataFormat::text).size(), 2);  // named, so not asked
}

TEST(FilesOf, LinksAreFollowedUnlessTheyLeadBack) {
    const Tree tree({"a/x.jsonl", "b/y.jsonl", "loop/z.jsonl"});
    fs::create_symlink(tree.root / "a", tree.root / "b" / "a");
    EXPECT_EQ(tree.found("b"), (Names{"b/a/x.jsonl", "b/y.jsonl"}));
    fs::create_directory(tree.root / "loop" / "deep");
    // Two of them: a walk that only counts levels would go through 2^40 folders.
    fs::create_symlink(tree.root / "loop", tree.root / "loop" / "deep" / "first");
    fs::create_symlink("..", tree.root / "loop" / "deep" / "second");
    toy::expect_contains(toy::message_of("data.bad-source", [&] { tree.found("loop"); }),
                         {"loop/deep/", "is a link that leads back to a folder above it"});
    fs::create_symlink("nowhere", tree.root / "a" / "dangling.jsonl");
    EXPECT_EQ(tree.found("a"), Names{"a/x.jsonl"});
}

TEST(FilesOf, Splits) {
    const Tree tree({"train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl",
                     "training.jsonl", "more/train/x.jsonl"});
    const Names train{"more/train/x.jsonl", "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"};
    EXPECT_EQ(tree.found("", "train"), train);
    EXPECT_EQ(tree.found(""), train);  // not on the test set by mistake
    EXPECT_EQ(tree.found("", "test"), Names{"test-00000-of-00001.jsonl"});
    EXPECT_EQ(tree.found("*-0000*", "test"), Names{"test-00000-of-00001.jsonl"});
    EXPECT_EQ(tree.found("*"), (Names{"more/train/x.jsonl", "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl",
                                      "training.jsonl"}));  // all but the test set
    EXPECT_EQ(tree.found("t[er]*-0000*"), (Names{train[1], train[2]}));
    EXPECT_EQ(tree.found("te*").size(), 1u);  // what is asked for alone
    EXPECT_EQ(tree.found("t*n*").size(), 3u);
    toy::expect_contains(toy::message_of("data.no-files", [&] { tree.found("", "validation"); }),
                         {"none of its 5 files", "validation"});
}

TEST(Sources, RowsAreNumberedOverAllFiles) {
    const toy::Folder folder;
    const auto a = folder.write("a.jsonl", "{\"text\": \"0\"}\n\n{\"text\": \"1\"}\n");
    const auto b = folder.write("b.csv", "body\n2\n3\n");
    folder.write("c1.txt", "4\n\n5");
    folder.write("c2.txt", "");
    folder.write("c3.txt", "6");
    const toy::Encoder encoder;
    const std::vector<config::DataSource> sources = {{.path = a.string()},
                                                     {.path = b.string(), .columns = {{"text", "body"}}},
                                                     {.path = (a.parent_path() / "c*.txt").string()}};
    for (const int workers : {1, 3}) {
        DatasetOptions options;
        options.workers = workers;
        const Dataset data = Dataset::load(sources, options, [&](const std::string&) { return &encoder; });
        ASSERT_EQ(data.size(), 7);
        for (int64_t i = 0; i < 7; ++i) {
            EXPECT_EQ(data.row(i), i);
            EXPECT_EQ(data.sample(i).ids, encoder.text(std::to_string(i)).ids);
            EXPECT_EQ(data.source(i), i < 2 ? 0 : i < 4 ? 1 : 2);
        }
    }
    const auto empty = folder.write("empty.jsonl", "\n");
    toy::expect_contains(
        toy::message_of("data.empty",
                        [&] {
                            Dataset::load(
                                {{.path = a.string()}, {.path = empty.string(), .format = config::DataFormat::text}},
                                {}, [&](const std::string&) { return &encoder; });
                        }),
        {"empty.jsonl", "has no rows"});
    const auto bad = folder.write("bad.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}\n");
    toy::expect_contains(toy::message_of("data.column-type",
                                         [&] {
                                             Dataset::load({{.path = a.string()}, {.path = bad.string()}}, {},
                                                           [&](const std::string&) { return &encoder; });
                                         }),
                         {"bad.jsonl:2: column \"text\""});
}

TEST(Sources, ColumnsThatTheFileLacks) {
    const toy::Folder folder;
    const auto path = folder.write("a.jsonl", "{\"text\": \"draft\", \"better_text\": \"final\"}\n");
    const toy::Encoder encoder;
    const auto load = [&](const char* column, config::DataFormat format) {
        return Dataset::load({{.path = path.string(), .format = format, .columns = {{"text", column}}}}, {},
                             [&](const std::string&) { return &encoder; });
    };
    for (const config::DataFormat format : {config::DataFormat::automatic, config::DataFormat::text}) {
        EXPECT_EQ(load("better_text", format).sample(0).ids, encoder.text("final").ids);
        toy::expect_contains(toy::message_of("data.missing-column", [&] { load("beter_text", format); }),
                             {"a.jsonl:1: there is no column \"beter_text\", which data.columns names for \"text\"",
                              "Did you mean better_text?"});
        testing::internal::CaptureStderr();  // one of several sources may have the column under its known name
        EXPECT_EQ(load("body", format).sample(0).ids, encoder.text("draft").ids);
        toy::expect_contains(testing::internal::GetCapturedStderr(), {"no column \"body\"", "own \"text\" is read"});
    }
}

TEST(Sources, RepairedRowsAreCountedWithTheirPlaces) {
    const toy::Folder folder;
    const auto path = folder.write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\xFF\"}\n");
    const toy::Encoder encoder;
    DatasetOptions options;
    toy::expect_contains(toy::message_of("data.not-utf8", [&] { Dataset::load(path, options, &encoder); }),
                         {"a.jsonl:2: not valid UTF-8"});
    options.reader.invalid_utf8 = config::InvalidUtf8::replace;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Dataset::load(path, options, &encoder).sample(1).ids, encoder.text("\uFFFD").ids);
    toy::expect_contains(testing::internal::GetCapturedStderr(), {"U+FFFD in 1 of 2 rows", "a.jsonl:2"});
}

}  // namespace
}  // namespace unsloth::data
