#include "unsloth/data/reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"

namespace unsloth {
namespace {

using Lines = std::vector<std::pair<int64_t, std::string>>;

Lines lines_of(const JsonLinesFile& file) {
    Lines lines;
    file.visit(0, file.rows(), [&](const RawRow& row) {
        EXPECT_EQ(row.index, static_cast<int64_t>(lines.size()));
        lines.emplace_back(row.line, row.text);
        return true;
    });
    return lines;
}

TEST(JsonLines, BlankLinesMarkCarriageReturnsAndNoLastNewline) {
    const toy::Folder folder;
    const JsonLinesFile file(
        folder.write("a.jsonl", "\xEF\xBB\xBF\r\n{\"a\":1}\r\n\n  \t\n{\"a\":2}\n{\"a\":3}"));
    EXPECT_EQ(lines_of(file), (Lines{{2, "{\"a\":1}"}, {5, "{\"a\":2}"}, {6, "{\"a\":3}"}}));
    EXPECT_EQ(file.row(1).text, "{\"a\":2}");
    EXPECT_EQ(file.row(2).line, 6);
}

TEST(JsonLines, EmptyFilesHaveNoRows) {
    const toy::Folder folder;
    EXPECT_EQ(JsonLinesFile(folder.write("a.jsonl", "")).rows(), 0);
    EXPECT_EQ(JsonLinesFile(folder.write("b.jsonl", "\n \n\r\n")).rows(), 0);
    EXPECT_EQ(JsonLinesFile(folder.write("c.jsonl", "\xEF\xBB\xBF")).rows(), 0);
}

TEST(JsonLines, SparseIndexFindsEveryRow) {
    const toy::Folder folder;
    std::string text;
    Lines expected;
    int64_t line = 0;
    for (int row = 0; row < 3 * JsonLinesFile::index_stride + 5; ++row) {
        for (int blank = 0; blank < row % 3; ++blank, ++line) text += "\n";
        text += cat("{\"row\":", row, "}\n");
        expected.emplace_back(++line, cat("{\"row\":", row, "}"));
    }
    const JsonLinesFile file(folder.write("a.jsonl", text));
    EXPECT_EQ(lines_of(file), expected);
    for (int64_t row = 0; row < file.rows(); ++row) {
        EXPECT_EQ(file.row(row).text, expected[static_cast<std::size_t>(row)].second);
        EXPECT_EQ(file.row(row).line, expected[static_cast<std::size_t>(row)].first);
    }
    file.drop(10, 150);
    EXPECT_EQ(lines_of(file), expected);
}

TEST(JsonLines, StopsWhenTheVisitorSaysSo) {
    const toy::Folder folder;
    const JsonLinesFile file(folder.write("a.jsonl", "{}\n{}\n{}\n"));
    int seen = 0;
    file.visit(0, 3, [&](const RawRow&) { return ++seen < 2; });
    EXPECT_EQ(seen, 2);
}

TEST(JsonLines, OtherKindsOfFilesAreNamed) {
    const toy::Folder folder;
    const auto refused = [&](const std::string& name, const std::string& content,
                             const std::vector<std::string>& parts) {
        const auto path = folder.write(name, content);
        toy::expect_contains(toy::message_of(ErrorKind::input, [&] { JsonLinesFile file(path); }), parts);
    };
    refused("a.json", " \n[{\"text\":\"x\"}]", {"a.json", "a JSON array", "jq -c '.[]'"});
    refused("b.bin", "PAR1\x15\x04", {"Parquet"});
    refused("c.jsonl.gz", "\x1F\x8B\x08", {"gzip"});
    refused("d.jsonl.zst", "\x28\xB5\x2F\xFD\x04", {"zstd"});
    refused("e.csv", "instruction,output\na,b\n", {"comma- or tab-separated"});
    refused("f.TSV", "instruction\toutput\n", {"comma- or tab-separated"});
    refused("g.txt", "Once upon a time\n", {"plain text"});
    refused("h.jsonl", std::string("\xFF\xFE{\0", 4), {"UTF-16"});
    const std::string missing =
        toy::message_of(ErrorKind::input, [] { JsonLinesFile file("/nowhere/a.jsonl"); });
    toy::expect_contains(missing, {"/nowhere/a.jsonl", "No such file"});
}

std::string bad_row(std::string_view text) {
    try {
        parse_row(text);
    } catch (const BadRow& bad) {
        return bad.message;
    }
    ADD_FAILURE() << text;
    return {};
}

TEST(JsonLines, MalformedRowsSayWhere) {
    EXPECT_EQ(parse_row("{\"a\": [1, 2]}")["a"][1], 2);
    toy::expect_contains(bad_row("{\"a\": 1,}"), {"not valid JSON", "column 9"});
    toy::expect_contains(bad_row("{\"a\": \"x"), {"not valid JSON", "column"});
    toy::expect_contains(bad_row("{\"a\": 1} {\"a\": 2}"), {"not valid JSON"});
    toy::expect_contains(bad_row("{\"a\": \"\xC3\x28\"}"), {"not valid JSON", "UTF-8"});
    toy::expect_contains(bad_row("[1]"), {"expected a JSON object, found an array"});
    toy::expect_contains(bad_row("3"), {"found a number"});
    EXPECT_EQ(bad_row("{").find("json.exception"), std::string::npos);
}

TEST(JsonLines, DeepNestingIsNoCrash) {
    const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
    EXPECT_EQ(parse_row(deep)["a"].size(), 1u);
    toy::expect_contains(bad_row("{\"a\":" + std::string(100000, '[')), {"not valid JSON"});
}

}  // namespace
}  // namespace unsloth
