// Parquet and Arrow, as pyarrow wrote them (tests/golden/data/make_parquet.py). Skipped where the library was not
// built.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "data/toy.h"
#include "unsloth/core/files.h"
#include "unsloth/data/reader.h"
#include "unsloth/data/source.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

class Parquet : public testing::Test {
  protected:
    void SetUp() override {
        if (!std::filesystem::exists(test::binary_folder() / "libunsloth_parquet.so"))
            GTEST_SKIP() << "built without Arrow";
    }
};

void expect_all_rows(const std::filesystem::path& path, const std::string& kind) {
    const auto file = open_rows(path);
    EXPECT_EQ(file->kind(), kind);
    int64_t count = 0;
    for (RowChunk chunk = file->next(); !chunk.empty(); chunk = file->next())
        for (std::size_t i = 0; i < chunk.size(); ++i, ++count) {
            EXPECT_EQ(chunk.row(i).index, count);
            EXPECT_EQ(chunk.row(i).line, count + 1);
            std::vector<int> ids(static_cast<std::size_t>(count % 4));
            for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<int>(k);
            char day[16];
            std::snprintf(day, sizeof day, "2024-01-%02d", static_cast<int>(1 + count % 28));
            const Json expected = {
                {"messages",
                 {{{"role", "user"}, {"content", cat("q", count, " \"\u00fc\"\n")}},
                  {{"role", "assistant"}, {"content", std::string(static_cast<std::size_t>(count % 7), 'a')}}}},
                {"id", count},
                {"score", count % 5 == 0 ? Json() : Json(static_cast<double>(count) / 8)},
                {"kind", count % 2 ? "x" : "y"},
                {"ids", ids},
                {"flag", count % 3 == 0},
                {"day", day}};
            Json row = file->parse(chunk.row(i));
            if (row["score"].is_number_integer()) row["score"] = row["score"].get<double>();
            EXPECT_EQ(row, expected);
        }
    EXPECT_EQ(count, 600);
}

TEST_F(Parquet, EveryTypeOfColumnOverRowGroups) {
    expect_all_rows(toy::golden("data/rows.parquet"), "Parquet");
}

TEST_F(Parquet, ArrowStreamsAndFiles) {
    expect_all_rows(toy::golden("data/saved/train/data-00000-of-00001.arrow"), "Arrow");
    expect_all_rows(toy::golden("data/rows.arrow"), "Arrow");
}

/// A folder that the datasets library's save_to_disk wrote.
TEST_F(Parquet, SavedDataSets) {
    const std::string folder = toy::golden("data/saved").string();
    EXPECT_EQ(files_of(folder, ""), std::vector<std::filesystem::path>{folder + "/train/data-00000-of-00001.arrow"});
    EXPECT_EQ(files_of(folder, "test"), std::vector<std::filesystem::path>{folder + "/test/data-00000-of-00001.arrow"});
    // Beside it lie results that the library keeps: none of the data set's rows.
    const toy::Folder copy;
    std::filesystem::copy(folder + "/train", copy.path() / "one");
    std::filesystem::copy_file(folder + "/train/data-00000-of-00001.arrow",
                               copy.path() / "one/cache-0123456789abcdef.arrow");
    EXPECT_EQ(files_of((copy.path() / "one").string(), "").size(), 1U);
}

TEST_F(Parquet, CutAndDamagedArrowFiles) {
    const toy::Folder folder;
    const std::string stream = read_file(toy::golden("data/saved/train/data-00000-of-00001.arrow"));
    const std::string file = read_file(toy::golden("data/rows.arrow"));
    const auto read = [&](const std::string& content) {
        const auto rows = open_rows(folder.write("broken.arrow", content));
        for (RowChunk chunk = rows->next(); !chunk.empty(); chunk = rows->next())
            for (std::size_t i = 0; i < chunk.size(); ++i) rows->parse(chunk.row(i));
    };
    // Without its end mark the stream would read as a shorter one.
    toy::expect_contains(toy::message_of("data.damaged-file", [&] { read(stream.substr(0, stream.size() - 8)); }),
                         {"cannot be read as Arrow", "no end", "not copied as a whole"});
    for (const std::string& whole : {stream, file})
        for (std::size_t at = 0; at < whole.size(); at += 211) {
            std::string broken = whole;
            broken[at] ^= 0x41;
            try {
                read(broken);
            } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::input);
            } catch (const BadRow&) {
            }
        }
}

std::vector<Json> rows_of(const std::string& name, const ReaderOptions& options = {}) {
    std::vector<Json> rows;
    const auto file = open_rows(toy::golden("data/" + name), options);
    for (RowChunk chunk = file->next(); !chunk.empty(); chunk = file->next())
        for (std::size_t i = 0; i < chunk.size(); ++i) rows.push_back(file->parse(chunk.row(i)));
    return rows;
}

/// What a column holds is written, never what Arrow prints of it; nulls that fill a struct are left out.
TEST_F(Parquet, TypesThatJsonHasOtherWordsFor) {
    const std::vector<Json> rows = rows_of("types.arrow");
    ASSERT_EQ(rows.size(), 3U);
    const auto column = [&](const std::string& name) {
        std::vector<std::string> texts;
        for (const Json& row : rows) texts.push_back(row.at(name).is_binary() ? "unread" : row.at(name).dump());
        return texts;
    };
    using Texts = std::vector<std::string>;
    EXPECT_EQ(column("runs"), (Texts{"\"first\"", "null", "null"}));
    EXPECT_EQ(column("json"), (Texts{"{\"b\":[1,null],\"a\":\"\u00fc\"}", "null", "\"a text\""}));
    EXPECT_EQ(column("views"), (Texts{R"(["a"])", "null", R"(["b","c"])"}));
    EXPECT_EQ(column("map"), (Texts{R"({"k":1,"l":null})", "null", "{}"}));
    EXPECT_EQ(column("struct"), (Texts{R"({"set":"s"})", "null", R"({"deep":{"x":1}})"}));
    EXPECT_EQ(column("half"), (Texts{"0.5", "null", "-2"}));
    EXPECT_EQ(column("decimal"), (Texts{"\"1.00\"", "null", "\"3.00\""}));
    EXPECT_EQ(column("time"), (Texts{"\"2024-01-02 03:04:05\"", "null", "null"}));
    EXPECT_EQ(column("text view"), (Texts{"\"a word\"", "\"a word\"", "\"a word\""}));
    EXPECT_EQ(column("bytes"), (Texts{"\"a text\"", "null", "unread"}));
    EXPECT_EQ(column("duration"), (Texts{"unread", "null", "unread"}));
    EXPECT_EQ(column("union"), (Texts{"unread", "unread", "unread"}));
    EXPECT_EQ(column("integer keys"), (Texts{"unread", "null", "{}"}));
    EXPECT_EQ(column("uuid"), (Texts{"unread", "unread", "unread"}));
    EXPECT_EQ(shown(rows[2]["uuid"]), "a value of Arrow's type arrow.uuid, which is not read");
    ReaderOptions replacing;
    replacing.invalid_utf8 = config::InvalidUtf8::replace;
    EXPECT_EQ(rows_of("types.arrow", replacing)[2]["bytes"], "\uFFFD\uFFFD");
    // Parquet's own annotation; a number beside it stays one.
    const std::vector<Json> of_parquet = rows_of("json.parquet");
    EXPECT_EQ(of_parquet[0], Json::parse(R"({"text": {"b": [1, null], "a": "\u00fc"}, "number": 1})"));
    EXPECT_EQ(of_parquet[2]["text"], "a text");
}

TEST_F(Parquet, WhatIsNotReadIsRefusedByNameWhereItIsUsed) {
    const toy::Encoder encoder;
    const auto refused = [&](const std::string& file, const char* text) {
        DatasetOptions options;
        options.reader.columns = {{"text", text}};
        return toy::message_of("data.column-type",
                               [&] { Dataset::load(toy::golden("data/" + file), options, &encoder); });
    };
    toy::expect_contains(refused("types.arrow", "duration"),
                         {"types.arrow:1: column \"text\"", "Arrow's type duration"});
    toy::expect_contains(refused("types.arrow", "union"), {"Arrow's type sparse_union"});
    toy::expect_contains(refused("types.arrow", "integer keys"), {"a map whose keys are not strings"});
    toy::expect_contains(refused("same_names.arrow", "twice"), {"two columns of that name"});
    toy::expect_contains(refused("types.arrow", "bytes"), {"types.arrow:2", "null"});
    const Dataset rows = Dataset::load(toy::golden("data/same_names.arrow"), {}, &encoder);
    EXPECT_EQ(rows.sample(2).ids, encoder.text("a word").ids);
    DatasetOptions skips;
    skips.skip_bad_rows = true;
    skips.reader.columns = {{"text", "bytes"}};
    EXPECT_EQ(Dataset::load(toy::golden("data/types.arrow"), skips, &encoder).size(), 1);
    EXPECT_THROW(check_usable(unread("no JSON"), "here"), BadRow);
}

TEST_F(Parquet, NullColumnsDecideNoFormat) {
    const toy::Encoder encoder;
    const Dataset rows = Dataset::load(toy::golden("data/null_messages.parquet"), {}, &encoder);
    EXPECT_EQ(rows.stats().format, config::DataFormat::text);
    EXPECT_EQ(rows.sample(1).ids, encoder.text("b").ids);
}

TEST_F(Parquet, RowsOfMessagesTrain) {
    const toy::Encoder encoder;
    DatasetOptions options;
    options.keep_all_masked = true;
    const Dataset data = Dataset::load(toy::golden("data/rows.parquet"), options, &encoder);
    // An id column of tokens would be the format "tokenized" only under the name input_ids.
    EXPECT_EQ(data.stats().format, config::DataFormat::messages);
    EXPECT_EQ(data.size(), 600);
    EXPECT_EQ(data.sample(8).ids, encoder.messages({{"user", "q8 \"\u00fc\"\n"}, {"assistant", "a"}}).ids);
}

TEST_F(Parquet, WrongTypesAndDamagedFiles) {
    const toy::Encoder encoder;
    toy::expect_contains(toy::message_of("data.column-type",
                                         [&] { Dataset::load(toy::golden("data/wrong_types.parquet"), {}, &encoder); }),
                         {"wrong_types.parquet:1: column \"text\": expected a string, found 1"});
    const toy::Folder folder;
    const std::string whole = read_file(toy::golden("data/rows.parquet"));
    const auto cut = folder.write("cut.parquet", whole.substr(0, whole.size() / 2));
    toy::expect_contains(toy::message_of("data.damaged-file", [&] { open_rows(cut); }),
                         {"cut.parquet", "cannot be read as Parquet"});
    // Damage in the data: an error or other rows, never a crash.
    for (std::size_t at = 4; at < whole.size(); at += 97) {
        std::string broken = whole;
        broken[at] ^= 0x41;
        const auto path = folder.write("broken.parquet", broken);
        try {
            const auto file = open_rows(path);
            for (RowChunk chunk = file->next(); !chunk.empty(); chunk = file->next())
                for (std::size_t i = 0; i < chunk.size(); ++i) file->parse(chunk.row(i));
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
        } catch (const BadRow&) {
        }
    }
}

}  // namespace
}  // namespace unsloth::data
