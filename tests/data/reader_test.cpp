#include "unsloth/data/reader.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <chrono>

#include <nlohmann/json.hpp>

#include "data/toy.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;
/// {line, columns}.
using NumberedRows = std::vector<std::pair<int64_t, Json>>;

NumberedRows numbered_rows(const std::filesystem::path& path, const ReaderOptions& options = {}) {
    const auto file = open_rows(path, options);
    NumberedRows rows;
    for (RowChunk chunk = file->next(); !chunk.empty(); chunk = file->next())
        for (std::size_t i = 0; i < chunk.size(); ++i) {
            EXPECT_EQ(chunk.row(i).index, static_cast<int64_t>(rows.size()));
            rows.emplace_back(chunk.row(i).line, file->parse(chunk.row(i)));
        }
    return rows;
}

/// What the last row's parse refuses.
std::string bad_row(const std::filesystem::path& path, const ReaderOptions& options = {}) {
    try {
        numbered_rows(path, options);
    } catch (const BadRow& bad) {
        return bad.message + "\n" + bad.advice;
    }
    ADD_FAILURE() << path;
    return {};
}

std::string reader_refusal(const std::filesystem::path& path) {
    return toy::message_of(ErrorKind::input, [&] { numbered_rows(path); });
}

std::string gzip(const std::string& text) {
    std::string out(compressBound(text.size()) + 32, '\0');
    z_stream state{};
    deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    state.avail_in = static_cast<uInt>(text.size());
    state.next_out = reinterpret_cast<Bytef*>(out.data());
    state.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
    out.resize(state.total_out);
    deflateEnd(&state);
    return out;
}

std::string zstd(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
}

/// `count` rows whose lengths differ, several megabytes of them.
std::string many_lines(int count, NumberedRows* rows = nullptr) {
    std::string text;
    for (int row = 0; row < count; ++row) {
        const Json columns = {{"row", row}, {"text", std::string(static_cast<std::size_t>(row * 7919 % 5000), 'x')}};
        if (rows) rows->emplace_back(row + 1, columns);
        text += columns.dump() + "\n";
    }
    return text;
}

TEST(JsonLines, BlankLinesMarkCarriageReturnsAndNoLastNewline) {
    const toy::Folder folder;
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl", "\xEF\xBB\xBF\r\n{\"a\":1}\r\n\n  \t\n{\"a\":2}\n{\"a\":3}")),
              (NumberedRows{{2, {{"a", 1}}}, {5, {{"a", 2}}}, {6, {{"a", 3}}}}));
}

TEST(JsonLines, EmptyFilesHaveNoRows) {
    const toy::Folder folder;
    for (const char* content : {"", "\n \n\r\n", "\xEF\xBB\xBF"})
        EXPECT_TRUE(numbered_rows(folder.write("a.jsonl", content)).empty());
    EXPECT_TRUE(numbered_rows(folder.write("a.json", " [ \n ] \n")).empty());
    EXPECT_TRUE(numbered_rows(folder.write("a.csv", "")).empty());
    EXPECT_TRUE(numbered_rows(folder.write("a.csv", "x,y\n")).empty());
    EXPECT_TRUE(numbered_rows(folder.write("a.txt", "\n\n")).empty());
}

TEST(Readers, CompressedFilesHoldTheSameRows) {
    const toy::Folder folder;
    NumberedRows expected;
    const std::string text = many_lines(2000, &expected);  // more than a block
    const std::string half = text.substr(0, text.size() / 3), rest = text.substr(text.size() / 3);
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl", text)), expected);
    const std::string whole = gzip(text), frame = zstd(text);
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl.gz", whole)), expected);
    EXPECT_EQ(numbered_rows(folder.write("b.jsonl.gz", gzip(half) + gzip(rest))), expected);
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl.zst", frame)), expected);
    EXPECT_EQ(numbered_rows(folder.write("b.jsonl.zst", zstd(half) + zstd(rest))), expected);
    EXPECT_EQ(numbered_rows(folder.write("c.csv.gz", gzip("a,b\n1,2\n"))),
              (NumberedRows{{2, {{"a", "1"}, {"b", "2"}}}}));

    toy::expect_contains(reader_refusal(folder.write("cut.jsonl.gz", whole.substr(0, whole.size() - 9))),
                         {"cut.jsonl.gz", "gzip", "ends too early"});
    toy::expect_contains(reader_refusal(folder.write("cut.jsonl.zst", frame.substr(0, frame.size() / 2))),
                         {"cut.jsonl.zst", "zstd", "ends too early"});
    std::string broken = whole;
    broken[broken.size() / 2] ^= 0x55;
    toy::expect_contains(reader_refusal(folder.write("broken.jsonl.gz", broken)), {"broken.jsonl.gz", "damaged"});
}

TEST(Readers, OtherKindsOfFilesAreNamed) {
    const toy::Folder folder;
    const auto check = [&](const std::string& name, const std::string& content, const std::vector<std::string>& parts) {
        toy::expect_contains(reader_refusal(folder.write(name, content)), parts);
    };
    check("a.jsonl", std::string("\xFF\xFE{\0", 4), {"a.jsonl", "UTF-16", "iconv"});
    check("a.jsonl.xz", "\xFD\x37\x7AXZ", {"xz"});
    check("a.zip", "PK\x03\x04", {"zip"});
    check("rows.pkl", std::string("\x80\x04\x95\x10\0\0", 6), {"rows.pkl", "pickle", "never read"});
    check("rows.pt", "\x80\x02}q", {"rows.pt", "pickle"});
    toy::expect_contains(reader_refusal("/nowhere/a.jsonl"), {"/nowhere/a.jsonl", "No such file"});
    toy::expect_contains(reader_refusal("/tmp"), {"/tmp", "not a regular file"});
}

TEST(JsonLines, MalformedRowsSayWhere) {
    EXPECT_EQ(parse_row("{\"a\": [1, 2]}")["a"][1], 2);
    const toy::Folder folder;
    const auto bad = [&](const std::string& line, const std::vector<std::string>& parts) {
        toy::expect_contains(bad_row(folder.write("a.jsonl", "{\"first\": 1}\n" + line)), parts);
    };
    bad("{\"a\": 1,}", {"not valid JSON", "column 9"});
    bad("{\"a\": \"x", {"not valid JSON", "column"});
    bad("{\"a\": 1} {\"a\": 2}", {"not valid JSON"});
    bad("[1]", {"expected a JSON object, found an array"});
    bad("3", {"found a number"});
    EXPECT_EQ(bad_row(folder.write("a.jsonl", "{")).find("json.exception"), std::string::npos);
}

TEST(Readers, DeepNestingIsABadRow) {
    const toy::Folder folder;
    const auto nested = [](int levels) {
        return cat("{\"a\":", std::string(levels - 1, '['), std::string(levels - 1, ']'), ",\"b\":1}");
    };
    ReaderOptions options;
    options.columns = {{"c", "a"}};
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl", nested(1000)), options)[0].second["c"].size(), 1u);
    EXPECT_EQ(numbered_rows(folder.write("a.json", "[" + nested(1000) + "]"))[0].second["a"].size(), 1u);
    for (const int levels : {1001, 1'000'000}) {
        toy::expect_contains(bad_row(folder.write("a.jsonl", nested(levels))), {"nests deeper than 1000 levels"});
        toy::expect_contains(bad_row(folder.write("a.json", "[" + nested(levels) + "]")),
                             {"nests deeper than 1000 levels"});
    }
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl", "{\"a\":\"" + std::string(100000, '[') + "\"}"))[0]
                  .second["a"]
                  .get<std::string>()
                  .size(),
              100000u);
    toy::expect_contains(bad_row(folder.write("b.jsonl", "{\"a\":" + std::string(100000, '['))), {"nests deeper"});
    toy::expect_contains(reader_refusal(folder.write("b.json", "[{\"a\":" + std::string(100000, '['))),
                         {"ends within an element"});
}

TEST(Readers, ARowThatIsTooLargeIsABadRow) {
    const toy::Folder folder;
    const std::string large = "{\"text\": \"" + std::string(65 << 20, 'x') + "\"}";
    const auto path = folder.write("a.jsonl", "{\"text\": \"a\"}\n" + large + "\n{\"text\": \"b\"}\n");
    const auto file = open_rows(path);
    const RowChunk chunk = file->next();
    ASSERT_EQ(chunk.size(), 3u);
    EXPECT_EQ(chunk.row(1).bytes, static_cast<int64_t>(large.size()));
    EXPECT_LT(chunk.text_bytes(), std::size_t{1} << 20) << "it must not be held as a whole";
    EXPECT_EQ(file->parse(chunk.row(2))["text"], "b");
    EXPECT_EQ(chunk.row(2).line, 3);
    toy::expect_contains(bad_row(path), {cat("the row has ", large.size(), " bytes")});
    toy::expect_contains(reader_refusal(folder.write("a.json", "[" + large + "]")), {"a.json:1", "larger than 64 MiB"});
    toy::expect_contains(bad_row(folder.write("a.csv", "x\n\"" + std::string(65 << 20, 'y'))), {"bytes"});
    toy::expect_contains(bad_row(folder.write("a.txt", std::string(65 << 20, 'y'))), {"bytes"});
}

// 200 GiB of nothing but holes take no room on the disk and minutes to read.
TEST(Readers, AFileWithoutAnEndIsGivenUp) {
    const toy::Folder folder;
    const auto given_up = [&](const std::string& name, const std::string& front,
                              const std::vector<std::string>& parts) {
        const auto path = folder.write(name, front);
        std::filesystem::resize_file(path, std::uintmax_t{200} << 30);
        const auto begin = std::chrono::steady_clock::now();
        toy::expect_contains(toy::message_of(ErrorKind::input,
                                             [&] {
                                                 const auto file = open_rows(path);
                                                 while (!file->next().empty()) {
                                                 }
                                             }),
                             parts);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
        std::filesystem::remove(path);
    };
    given_up("a.jsonl", "{\"text\": \"x\"}\n", {"a.jsonl:2", "no row ends within 1 GiB"});
    given_up("a.csv", "a,b\n1,2\n", {"a.csv:3", "no row ends within 1 GiB"});
    given_up("a.json", "[{\"text\": \"x\"}, {", {"a.json", "larger than 64 MiB"});
    std::string blank;
    while (blank.size() < std::size_t{8} << 20) blank += std::string(4000, ' ') + "\n";
    const std::string bomb = zstd(blank);
    std::string lines;  // 1.2 GB of blank lines in a few KB
    for (int i = 0; i < 150; ++i) lines += bomb;
    toy::expect_contains(reader_refusal(folder.write("a.jsonl.zst", lines)), {"a.jsonl.zst", "64 MiB of white space"});
    const std::string row = zstd("{\"a\": 1}\n");
    toy::expect_contains(toy::message_of("data.not-rows",
                                         [&] {
                                             const auto file = open_rows(folder.write("b.jsonl.zst", row + lines));
                                             while (!file->next().empty()) {
                                             }
                                         }),
                         {"b.jsonl.zst", "no row ends within 1 GiB"});
}

TEST(JsonArray, ElementsWithTheirLines) {
    const toy::Folder folder;
    EXPECT_EQ(numbered_rows(folder.write("a.json", "\n [{\"a\": \"],[\\\"{\"},\n\n  {\"b\": [\n{}, 2]}\n,{}]\n\n")),
              (NumberedRows{{2, {{"a", "],[\"{"}}}, {4, {{"b", {Json::object(), 2}}}}, {6, Json::object()}}));
    Json all = Json::array();
    NumberedRows expected;
    many_lines(1500, &expected);
    for (const auto& [line, row] : expected) all.push_back(row);
    const NumberedRows rows = numbered_rows(folder.write("b.json", all.dump()));  // one line of several blocks
    ASSERT_EQ(rows.size(), expected.size());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].second, expected[i].second);
}

TEST(JsonArray, SyntaxErrors) {
    const toy::Folder folder;
    toy::expect_contains(reader_refusal(folder.write("a.json", "[{},\n{}")),
                         {"a.json:2: not valid JSON", "not closed"});
    toy::expect_contains(reader_refusal(folder.write("a.json", "[{}\n{}]")), {"a.json:2", "expected a comma"});
    toy::expect_contains(reader_refusal(folder.write("a.json", "[{},]")),
                         {"a.json:1", "comma before the closing bracket"});
    toy::expect_contains(reader_refusal(folder.write("a.json", "[{}] []")),
                         {"a.json:1", "follows the closing bracket"});
    toy::expect_contains(bad_row(folder.write("a.json", "[1, 2]")), {"expected a JSON object, found a number"});
    toy::expect_contains(bad_row(folder.write("a.json", "[{\"a\": tru}]")), {"not valid JSON"});
}

TEST(Table, QuotesDelimitersAndLineEnds) {
    const toy::Folder folder;
    const NumberedRows expected{{2, {{"q", "a, \"b\""}, {"a", "two\nlines"}}}, {5, {{"q", ""}, {"a", "5\" disk"}}}};
    EXPECT_EQ(
        numbered_rows(folder.write("a.csv", "\xEF\xBB\xBFq,a\r\n\"a, \"\"b\"\"\",\"two\nlines\"\r\n\r\n,5\" disk\r\n")),
        expected);
    EXPECT_EQ(numbered_rows(folder.write("a.tsv", "q\ta\n\"a, \"\"b\"\"\"\t\"two\nlines\"\n\n\t5\" disk")), expected);
    EXPECT_EQ(numbered_rows(folder.write("b.csv", "q;a\n\"a, \"\"b\"\"\";\"two\nlines\"\n\n;5\" disk\n")), expected);
    EXPECT_EQ(numbered_rows(folder.write("c.csv", "\"a\nb\",c\n1,2\n")),
              (NumberedRows{{3, {{"a\nb", "1"}, {"c", "2"}}}}));
}

TEST(Table, RecordsAndHeadersThatAreWrong) {
    const toy::Folder folder;
    toy::expect_contains(bad_row(folder.write("a.csv", "a,b\n1,2\n3\n")), {"1 fields, the header 2"});
    toy::expect_contains(bad_row(folder.write("a.csv", "a,b\n\"x\"y,2\n")),
                         {"field 1 continues after its closing quote"});
    toy::expect_contains(bad_row(folder.write("a.csv", "a,b\n1,\"2\n3\n")), {"field 2 has no closing quote"});
    toy::expect_contains(reader_refusal(folder.write("a.csv", "a,b,a\n1,2,3\n")),
                         {"a.csv:1", "two columns are named \"a\""});
}

TEST(Table, ManyColumns) {
    const toy::Folder folder;
    const auto table = [&](int columns) {
        std::string header, record;
        for (int i = 0; i < columns; ++i) header += cat(i == 0 ? "" : ",", "column", i), record += i == 0 ? "x" : ",x";
        std::string text = header + "\n";
        for (int row = 0; row < 100; ++row) text += record + "\n";
        return folder.write("a.csv", text);
    };
    const NumberedRows rows = numbered_rows(table(10000));  // time with the square of their number would be minutes
    ASSERT_EQ(rows.size(), 100u);
    EXPECT_EQ(rows[99].second["column9999"], "x");
    EXPECT_EQ(rows[99].second.size(), 10000u);
    toy::expect_contains(reader_refusal(table(10001)), {"a.csv:1", "10001 columns"});
}

TEST(PlainText, ParagraphsOrTheWholeFile) {
    const toy::Folder folder;
    const auto path = folder.write("a.txt", "\n\nOne\r\ntwo\n \nthree\n\n\n four");
    EXPECT_EQ(numbered_rows(path),
              (NumberedRows{{3, {{"text", "One\ntwo"}}}, {6, {{"text", "three"}}}, {9, {{"text", " four"}}}}));
    ReaderOptions options;
    options.text_unit = config::TextUnit::file;
    EXPECT_EQ(numbered_rows(path, options), (NumberedRows{{3, {{"text", "One\ntwo\n \nthree\n\n\n four"}}}}));
}

TEST(Readers, ColumnsAreRenamed) {
    const toy::Folder folder;
    ReaderOptions options;
    options.columns = {{"a", "b"}, {"b", "a"}, {"x", "missing"}};
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl", R"({"a": 1, "b": 2, "c": 3})"), options),
              (NumberedRows{{1, {{"c", 3}, {"a", 2}, {"b", 1}}}}));
}

TEST(Readers, AColumnWithoutANameInTheFileIsNotRead) {
    const toy::Folder folder;
    ReaderOptions options;
    options.columns = {{"input", ""}, {"instruction", "question"}, {"system", ""}, {"output", "system"}};
    EXPECT_EQ(numbered_rows(folder.write("a.jsonl", R"({"question": "q", "input": "note", "system": "o", "": "x"})"),
                            options),
              (NumberedRows{{1, {{"", "x"}, {"instruction", "q"}, {"output", "o"}}}}));
}

TEST(Readers, AnObjectOfVeryManyKeysIsABadRow) {
    const toy::Folder folder;
    std::string row = "{\"text\": \"x\", \"wide\": {\"k\": 0";
    for (int i = 0; i < 200000; ++i) row += cat(", \"k", i, "\": 1");
    EXPECT_THROW(parse_row(row + "}}"), BadRow);
    std::string many = "{\"messages\": [";
    for (int i = 0; i < 20000; ++i) many += cat(i ? "," : "", R"({"role": "user", "content": "x"})");
    EXPECT_EQ(parse_row(many + "]}")["messages"].size(), 20000U);
}

TEST(Readers, BytesThatAreNotUtf8) {
    const toy::Folder folder;
    ReaderOptions replace;
    replace.invalid_utf8 = config::InvalidUtf8::replace;
    const auto lines = folder.write("a.jsonl", "{\"a\": \"x\xC3(y\"}");
    toy::expect_contains(bad_row(lines), {"not valid UTF-8 at byte 9", "data.invalid_utf8"});
    EXPECT_EQ(numbered_rows(lines, replace)[0].second["a"], "x\uFFFD(y");
    const auto table = folder.write("a.csv", "t\nab\xFF\n");
    toy::expect_contains(bad_row(table), {"not valid UTF-8 at byte 3"});
    EXPECT_EQ(numbered_rows(table, replace)[0].second["t"], "ab\uFFFD");
}

}  // namespace
}  // namespace unsloth::data
