// Slices of splits, over files and through the cache.
#include <gtest/gtest.h>

#include <numeric>

#include "data/toy.h"
#include "unsloth/data/cache.h"
#include "unsloth/data/dataset.h"
#include "unsloth/data/source.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

/// Rows {"text": "N"} from `begin` on.
std::string rows(int begin, int count) {
    std::string text;
    for (int i = begin; i < begin + count; ++i) text += cat("{\"text\": \"", i, "\"}\n");
    return text;
}

struct Sets {
    toy::Folder folder;
    toy::Encoder encoder;
    fs::path root;
    Sets() {
        root = folder.write(".root", "").parent_path();
        folder.write("train-0.jsonl", rows(0, 150));
        folder.write("train-1.jsonl", rows(150, 50));
        folder.write("test.jsonl", rows(1000, 10));
        folder.write("alone.csv", "text\n0\n1\n2\n3\n");
    }
    Dataset load(const std::string& file, const std::string& split, int64_t most = 0) {
        return Dataset::load({{.path = (root / file).string(), .split = split, .max_samples = most}}, {},
                             [&](const std::string&) { return &encoder; });
    }
    /// Numbers of the rows that are read: their first and last, and how many.
    void expect(const std::string& file, const std::string& split, const Ids& numbers, int64_t most = 0) {
        SCOPED_TRACE(split);
        const Dataset data = load(file, split, most);
        ASSERT_EQ(data.size(), static_cast<int64_t>(numbers.size()));
        for (int64_t i = 0; i < data.size(); ++i)
            EXPECT_EQ(data.sample(i).ids, encoder.text(std::to_string(numbers[static_cast<std::size_t>(i)])).ids) << i;
    }
};

Ids counted(int64_t begin, int64_t end) {
    Ids ids(static_cast<std::size_t>(end - begin));
    std::iota(ids.begin(), ids.end(), begin);
    return ids;
}

TEST(Slices, AreOfAllFilesOfTheSplit) {
    Sets sets;
    sets.expect("", "train[:20%]", counted(0, 40));
    sets.expect("", "train[140:160]", counted(140, 160));
    sets.expect("", "train[-10:]", counted(190, 200));
    sets.expect("", "train[100:]", counted(100, 200));
    sets.expect("", "train[160:]", counted(160, 200));
    sets.expect("", "train[75%:]", counted(150, 200));  // nothing of the first file
    sets.expect("", "train[100:500]", counted(100, 200));
    sets.expect("", "train[10:]", counted(10, 12), 2);  // max_samples counts what the slice has
    sets.expect("", "[:3]", counted(0, 3));             // train, as without a split
    sets.expect("alone.csv", "[1:3]", counted(1, 3));
    sets.expect("alone.csv", "[:50%]", counted(0, 2));
    Ids both = counted(198, 200);
    for (const int64_t id : counted(1000, 1010)) both.push_back(id);
    sets.expect("", "train[-2:]+test", both);
}

TEST(Slices, NumberRowsAsTheFileDoes) {
    Sets sets;
    const Dataset data = sets.load("alone.csv", "[2:]");
    ASSERT_EQ(data.size(), 2);
    EXPECT_EQ(data.row(0), 2);
    EXPECT_EQ(data.row(1), 3);
}

TEST(Slices, WithoutRowsAndWithoutASplitAreRefused) {
    Sets sets;
    toy::expect_contains(toy::message_of("data.empty", [&] { sets.load("", "train[500:]"); }),
                         {"has no rows in the slice"});
    toy::expect_contains(toy::message_of("data.no-files", [&] { sets.load("", "validation[:5]"); }),
                         {"belongs to the split validation", "alone, test, train"});
    toy::expect_contains(toy::message_of("data.no-files", [&] { sets.load("alone.csv", "test"); }),
                         {"alone.csv", "belongs to the split test"});
    EXPECT_EQ(sets.load("alone.csv", "train").size(), 4);  // a file that names no split is of train
    EXPECT_EQ(sets.load("test.jsonl", "test").size(), 10);
}

TEST(Slices, AFolderThatNamesNoSplitIsTrain) {
    const toy::Folder folder;
    const toy::Encoder encoder;
    folder.write("a.jsonl", rows(0, 3));
    folder.write("b.jsonl", rows(3, 3));
    const auto load = [&](const std::string& split) {
        return Dataset::load({{.path = folder.path().string(), .split = split}}, {},
                             [&](const std::string&) { return &encoder; });
    };
    EXPECT_EQ(load("train[:4]").size(), 4);
    EXPECT_THROW(load("test"), Error);
}

TEST(Slices, AConfigurationIsAFolder) {
    const toy::Folder folder;
    const toy::Encoder encoder;
    folder.write("main/train.jsonl", rows(0, 3));
    folder.write("socratic/train.jsonl", rows(0, 5));
    const Dataset data = Dataset::load({{.path = folder.path().string(), .config_name = "socratic"}}, {},
                                       [&](const std::string&) { return &encoder; });
    EXPECT_EQ(data.size(), 5);
}

TEST(Slices, EachHasACacheFileOfItsOwn) {
    Sets sets;
    sets.folder.write("long.jsonl", rows(0, 400));
    CacheOptions cache;
    cache.folder = sets.root / "cache";
    cache.least_bytes = 0;
    cache.encoder_fingerprint = "toy";
    int encoders = 0;
    const auto load = [&](const std::string& split) {
        return load_cached(
                   {{.path = (sets.root / "long.jsonl").string(), .split = split}}, {},
                   [&](const std::string&) {
                       ++encoders;
                       return &sets.encoder;
                   },
                   cache)
            .size();
    };
    EXPECT_EQ(load("[:100]"), 100);
    EXPECT_EQ(load("[:25%]"), 100);  // the same rows today
    EXPECT_EQ(load("[:200]"), 200);
    EXPECT_EQ(load(""), 400);
    EXPECT_EQ(encoders, 4);
    EXPECT_EQ(load("[:100]"), 100);
    EXPECT_EQ(load("[:200]"), 200);
    EXPECT_EQ(encoders, 4);
}

}  // namespace
}  // namespace unsloth::data
