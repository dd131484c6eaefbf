#include "unsloth/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "data/toy.h"
#include "unsloth/core/log.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

/// A file of text rows "row N" with different lengths; `replace` gives other lines for some rows.
std::string rows_with(int count, const std::map<int, std::string>& replace = {}) {
    std::string text;
    for (int row = 0; row < count; ++row) {
        const auto found = replace.find(row);
        text +=
            found != replace.end() ? found->second : cat("{\"text\": \"row ", row, std::string(row % 5, '.'), "\"}");
        text += "\n";
    }
    return text;
}

bool same(const Dataset& a, const Dataset& b) {
    if (a.size() != b.size()) return false;
    for (int64_t i = 0; i < a.size(); ++i) {
        const Sample x = a.sample(i), y = b.sample(i);
        if (x.row != y.row || x.ids != y.ids || x.labels != y.labels || x.positions != y.positions ||
            x.segments != y.segments)
            return false;
    }
    return true;
}

TEST(Dataset, KeepsTheFilesOrderForAnyNumberOfWorkers) {
    const toy::Folder folder;
    const auto path = folder.write("a.jsonl", rows_with(1000));
    DatasetOptions options;
    options.workers = 1;
    const Dataset one = Dataset::load(path, options, &toy::encoder);
    ASSERT_EQ(one.size(), 1000);
    for (int64_t i = 0; i < one.size(); ++i) {
        const EncodedRow expected =
            toy::encoder.text(cat("row ", i, std::string(static_cast<std::size_t>(i % 5), '.')));
        EXPECT_EQ(one.row(i), i);
        EXPECT_EQ(one.sample(i).ids, expected.ids);
        EXPECT_EQ(one.tokens(i), static_cast<int64_t>(expected.ids.size()));
        EXPECT_EQ(one.targets(i), one.tokens(i) - 1);
    }
    options.workers = 7;
    EXPECT_TRUE(same(one, Dataset::load(path, options, &toy::encoder)));
}

TEST(Dataset, Statistics) {
    const toy::Folder folder;
    const auto path = folder.write("a.jsonl", R"({"input_ids": [1, 2, 3, 4, 5]}
{"input_ids": [1, 2], "labels": [-100, 2]}
{"input_ids": [1, 2, 3], "position_ids": [0, 1, 0]}
)");
    DatasetOptions options;
    options.max_seq_length = 4;
    Dataset data;
    const std::string log = toy::logged([&] { data = Dataset::load(path, options, nullptr); });
    toy::expect_contains(log,
                         {"JSON Lines, rows of format tokenized (columns input_ids)", "cut 1 of 3 rows at 4 tokens"});
    // A slice of the same file to evaluate on tells its format no second time.
    EXPECT_EQ(toy::logged([&] { Dataset::load(path, options, nullptr); }).find("rows of format"), std::string::npos);
    EXPECT_EQ(data.stats().rows, 3);
    EXPECT_EQ(data.stats().tokens, 4 + 2 + 3);
    EXPECT_EQ(data.stats().trained_tokens, 3 + 1 + 1);
    EXPECT_EQ(data.stats().longest, 4);
    EXPECT_EQ(data.stats().truncated_rows, 1);
    EXPECT_EQ(data.stats().format, config::DataFormat::tokenized);
    EXPECT_EQ(data.sample(2).positions, (Ints{0, 1, 0}));
    EXPECT_EQ(data.sample(1).positions, (Ints{0, 1}));
    EXPECT_EQ(data.sample(0).positions, (Ints{0, 1, 2, 3}));
}

TEST(Dataset, GivenPositionsSurviveChunksAndSplits) {
    const toy::Folder folder;
    std::string text;
    for (int row = 0; row < 300; ++row)
        text += row % 3 == 0
                    ? cat("{\"input_ids\": [1, 2, 3, 4], \"position_ids\": [", row, ", ", row + 1, ", 0, 1]}\n")
                    : std::string("{\"input_ids\": [1, 2, 3]}\n");
    const Dataset data = Dataset::load(folder.write("a.jsonl", text), {}, nullptr);
    for (const Dataset& part : {data, data.split(0.5, 1).first})
        for (int64_t i = 0; i < part.size(); ++i) {
            const auto row = static_cast<int32_t>(part.row(i));
            EXPECT_EQ(part.sample(i).positions, row % 3 == 0 ? (Ints{row, row + 1, 0, 1}) : (Ints{0, 1, 2}));
        }
}

TEST(Dataset, TheFirstBadRowStopsTheRunWithItsLine) {
    const toy::Folder folder;
    // Blank lines make rows and lines differ; the bad rows lie in two chunks.
    const auto path =
        folder.write("a.jsonl", "\n\n" + rows_with(400, {{70, "{\"text\": \"x}"}, {300, "{\"text\": 1}"}}));
    DatasetOptions options;
    for (const int workers : {1, 4}) {
        options.workers = workers;
        const std::string what =
            toy::message_of("data.row-syntax", [&] { Dataset::load(path, options, &toy::encoder); });
        EXPECT_EQ(what.rfind(cat(path.string(), ":73: not valid JSON: column"), 0), 0u) << what;
        toy::expect_contains(what, {"skip_invalid"});
    }
}

TEST(Dataset, BadRowsAreSkippedAndCounted) {
    const toy::Folder folder;
    std::map<int, std::string> bad{{0, "oops"}, {70, "{\"text\": \"x}"}, {300, "{\"text\": 1}"}};
    const auto path = folder.write("a.jsonl", rows_with(400, bad));
    DatasetOptions options;
    options.skip_bad_rows = true;
    Dataset data;
    std::string log = toy::logged([&] { data = Dataset::load(path, options, &toy::encoder); });
    EXPECT_EQ(data.size(), 397);
    EXPECT_EQ(data.stats().bad_rows, 3);
    EXPECT_EQ(data.row(0), 1);
    toy::expect_contains(log, {"skipped 3 bad of 400 rows", cat(path.string(), ":1: not valid JSON"),
                               cat(path.string(), ":71: "), cat(path.string(), ":301: column \"text\"")});

    for (int row = 100; row < 200; ++row) bad[row] = "{}";
    const auto worse = folder.write("b.jsonl", rows_with(400, bad));
    log = toy::logged([&] { data = Dataset::load(worse, options, &toy::encoder); });
    toy::expect_contains(log, {"skipped 103 bad of 400 rows", "b.jsonl:103: ", "..."});
    EXPECT_EQ(log.find("b.jsonl:104:"), std::string::npos);  // only the first five
    EXPECT_EQ(data.size(), 297);
}

TEST(Dataset, WhatTheTemplateRefusesIsABadRow) {
    const toy::Folder folder;
    const std::string good = R"({"messages": [{"role": "assistant", "content": "b"}]})";
    const auto path =
        folder.write("a.jsonl", good + "\n" + R"({"messages": [{"role": "tool", "content": "b"}]})" + "\n");
    toy::expect_contains(toy::message_of("template.failed", [&] { Dataset::load(path, {}, &toy::encoder); }),
                         {"a.jsonl:2: the template knows no role \"tool\""});
    DatasetOptions options;
    options.skip_bad_rows = true;
    EXPECT_EQ(Dataset::load(path, options, &toy::encoder).stats().bad_rows, 1);
}

TEST(Dataset, RowsWithAllLabelsMaskedAreRefusedWithCountAndLines) {
    const toy::Folder folder;
    std::map<int, std::string> masked;
    for (const int row : {3, 90, 91, 92, 93, 94, 95}) masked[row] = "{\"text\": \"\"}";
    class Empty : public toy::Encoder {  // an empty text becomes one token, which predicts nothing
      public:
        EncodedRow text(std::string_view text) const override {
            return text.empty() ? EncodedRow{{toy::eos}, {{0, 1}}} : toy::Encoder::text(text);
        }
    };
    const Empty empty;
    const auto path = folder.write("a.jsonl", rows_with(100, masked));
    const std::string what = toy::message_of("data.all-masked", [&] { Dataset::load(path, {}, &empty); });
    EXPECT_EQ(what.rfind(cat(path.string(), ":4: all labels are masked"), 0), 0u) << what;
    toy::expect_contains(what, {"7 of 100 rows", "a.jsonl:91,", "a.jsonl:94, ...", "train_on_prompt"});

    DatasetOptions options;
    options.skip_bad_rows = true;
    Dataset data;
    const std::string log = toy::logged([&] { data = Dataset::load(path, options, &empty); });
    EXPECT_EQ(data.size(), 93);
    EXPECT_EQ(data.stats().masked_rows, 7);
    EXPECT_EQ(data.stats().bad_rows, 0);
    toy::expect_contains(log, {"omitted 7 of 100 rows whose labels are all masked", "a.jsonl:4"});

    options = {};
    options.keep_all_masked = true;
    EXPECT_EQ(Dataset::load(path, options, &empty).size(), 100);
}

TEST(Dataset, AnswersThatAreCutOffAreNamedAsTheCause) {
    const toy::Folder folder;
    const auto path = folder.write("a.jsonl", R"({"instruction": "a long prompt", "output": "yes"})");
    DatasetOptions options;
    options.max_seq_length = 8;
    toy::expect_contains(toy::message_of("data.all-masked", [&] { Dataset::load(path, options, &toy::encoder); }),
                         {"a.jsonl:1: all labels are masked", "1 of them since they were cut", "max_seq_length"});
}

TEST(Dataset, FilesWithoutUsableRows) {
    const toy::Folder folder;
    const auto empty = folder.write("a.jsonl", "\n\n");
    toy::expect_contains(toy::message_of("data.empty", [&] { Dataset::load(empty, {}, nullptr); }),
                         {"a.jsonl", "has no rows"});

    DatasetOptions options;
    options.skip_bad_rows = true;
    const auto unknown = folder.write("b.jsonl", "{\"foo\": 1}\n{\"foo\": 2}\n");
    toy::expect_contains(
        toy::message_of("data.unknown-format", [&] { Dataset::load(unknown, options, &toy::encoder); }),
        {"b.jsonl:1: cannot tell the format", "foo"});
    const auto bad = folder.write("c.jsonl", "{\"text\": 1}\n{\"text\": 2}\n");
    toy::expect_contains(
        toy::message_of("data.no-usable-rows", [&] { Dataset::load(bad, options, &toy::encoder); }),
        {"c.jsonl", "none of its 2 rows can be used", "2 bad", "the first: ", "c.jsonl:1: ", "\"text\""});
}

TEST(Dataset, TheNamedFormatWinsOverTheColumns) {
    const toy::Folder folder;
    const auto path = folder.write("a.jsonl", R"({"text": "hello", "instruction": "a", "output": "b"})");
    DatasetOptions options;
    options.format = config::DataFormat::text;
    EXPECT_EQ(Dataset::load(path, options, &toy::encoder).sample(0).ids, toy::encoder.text("hello").ids);
    options.format = config::DataFormat::messages;
    toy::expect_contains(toy::message_of("data.missing-column", [&] { Dataset::load(path, options, &toy::encoder); }),
                         {"a.jsonl:1:", "\"messages\" is missing"});
    options.format = config::DataFormat::automatic;
    toy::expect_contains(toy::message_of("tokenizer.not-found", [&] { Dataset::load(path, options, nullptr); }),
                         {"need a tokenizer"});
}

TEST(Dataset, TheFingerprintSeesAllThatIsTrained) {
    // The same tokens, and in each case as many targets and segments: only which ones they are differs.
    const std::vector<int32_t> ids{5, 6, 7, 8, 9, 10, 11, 12}, one{0, 1, 2, 3, 4, 5, 6, 7};
    const auto print_of = [&](std::vector<int32_t> labels, std::vector<int32_t> positions, Segments segments) {
        return Dataset::from_samples({{0, ids, std::move(labels), std::move(positions), std::move(segments)}})
            .fingerprint();
    };
    const auto print = [&](std::vector<int32_t> labels, const std::vector<int32_t>& positions) {
        return print_of(std::move(labels), positions, segments_at_zero(positions));
    };
    constexpr int32_t off = ignore_label;
    const std::string plain = print(ids, one);
    EXPECT_EQ(plain, print(ids, one));
    EXPECT_NE(print({off, off, off, 8, 9, 10, 11, 12}, one), print({off, 6, 7, 8, 9, 10, off, off}, one));
    EXPECT_NE(plain, print({5, 6, 7, 8, 9, 10, 12, 11}, one)) << "labels that are not the tokens";
    EXPECT_NE(print(ids, {0, 1, 2, 3, 0, 1, 2, 3}), print(ids, {0, 1, 2, 3, 4, 0, 1, 2}));
    EXPECT_NE(plain, print(ids, {3, 4, 5, 6, 7, 8, 9, 10})) << "positions that begin elsewhere";
    EXPECT_NE(plain, print_of(ids, one, {{0, 4}, {4, 4}})) << "segments that the positions do not say";
    EXPECT_NE(print_of(ids, one, {{0, 4}, {4, 4}}), print_of(ids, one, {{0, 4}, {4, 4, 0, 2}})) << "shared tokens";
}

std::set<int64_t> source_rows(const Dataset& data) {
    std::set<int64_t> rows;
    for (int64_t i = 0; i < data.size(); ++i) {
        EXPECT_TRUE(i == 0 || data.row(i) > data.row(i - 1)) << "not in the file's order";
        rows.insert(data.row(i));
    }
    return rows;
}

TEST(Split, IsSeededDisjointAndComplete) {
    const Dataset data = Dataset::from_samples(toy::samples(200, 9));
    const auto [train, validation] = data.split(0.1, 7);
    EXPECT_EQ(validation.size(), 20);
    EXPECT_EQ(train.size(), 180);
    std::set<int64_t> all = source_rows(train);
    all.merge(source_rows(validation));
    EXPECT_EQ(all.size(), 200u);
    EXPECT_EQ(train.stats().tokens + validation.stats().tokens, data.stats().tokens);
    EXPECT_EQ(train.stats().trained_tokens + validation.stats().trained_tokens, data.stats().trained_tokens);
    EXPECT_TRUE(same(validation, data.split(0.1, 7).second));
    EXPECT_NE(source_rows(validation), source_rows(data.split(0.1, 8).second));
}

TEST(Split, ByRowIdNotByPlace) {
    // Without some rows, the others keep their lots: what was in validation and is still there is there
    // again.
    const std::vector<Sample> all = toy::samples(200, 3);
    std::vector<Sample> fewer;
    std::copy_if(all.begin(), all.end(), std::back_inserter(fewer), [](const Sample& s) { return s.row % 10 != 0; });
    const std::set<int64_t> before = source_rows(Dataset::from_samples(all).split(20, 5).second);
    const std::set<int64_t> after = source_rows(Dataset::from_samples(fewer).split(20, 5).second);
    for (const int64_t row : before) EXPECT_TRUE(row % 10 == 0 || after.count(row)) << row;
}

TEST(Split, CountsAndFractions) {
    const Dataset data = Dataset::from_samples(toy::samples(100, 3));
    const auto taken = [&](double val_size) { return data.split(val_size, 1).second.size(); };
    EXPECT_EQ(taken(0), 0);
    EXPECT_EQ(taken(1), 1);
    EXPECT_EQ(taken(99), 99);
    EXPECT_EQ(taken(0.07), 7);
    EXPECT_EQ(taken(0.001), 1);
    for (const double wrong : {-1.0, -0.1, 1.5, 100.0, 101.0, std::numeric_limits<double>::quiet_NaN()})
        toy::expect_contains(toy::message_of(ErrorKind::usage, [&] { taken(wrong); }), {"data.val_size"});
}

}  // namespace
}  // namespace unsloth::data
