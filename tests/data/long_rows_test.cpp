// Rows longer than max_seq_length.
#include "unsloth/data/dataset.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "data/toy.h"
#include "unsloth/core/log.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

/// What a run trains of a data set: {row, token before, target}.
std::multiset<std::tuple<int64_t, int32_t, int32_t>> targets_of(const Dataset& data) {
    std::multiset<std::tuple<int64_t, int32_t, int32_t>> targets;
    for (int64_t i = 0; i < data.size(); ++i) {
        const Sample sample = data.sample(i);
        for (std::size_t t = 1; t < sample.ids.size(); ++t)
            if (sample.positions[t] != 0 && sample.labels[t] != ignore_label)
                targets.emplace(data.row(i), sample.ids[t - 1], sample.labels[t]);
    }
    return targets;
}

TEST(LongRows, PiecesTrainEveryTokenOnce) {
    const toy::Folder folder;
    std::string text, tokenized;
    for (int row = 0; row < 40; ++row) {
        std::string ids, labels, positions, letters;
        for (int t = 0; t < row; ++t) {
            const char* const comma = t == 0 ? "" : ", ";
            letters += cat("<", t, ">");
            ids += cat(comma, t);
            labels += cat(comma, t % 7 < 3 ? -100 : t + 1);
            positions += cat(comma, t % 11);  // segments of 11 tokens
        }
        text += cat("{\"text\": \"", letters, "\"}\n");
        if (row > 4)
            tokenized +=
                cat("{\"input_ids\": [", ids, "], \"labels\": [", labels, "], \"position_ids\": [", positions, "]}\n");
    }
    for (const auto& [name, content] : {std::pair("a.jsonl", text), std::pair("b.jsonl", tokenized)}) {
        const auto path = folder.write(name, content);
        DatasetOptions options;
        const Dataset whole = Dataset::load(path, options, &toy::encoder);
        options.long_rows = config::LongRows::split;
        for (const int64_t limit : {2, 3, 7, 11, 12, 64}) {
            options.max_seq_length = limit;
            const Dataset data = Dataset::load(path, options, &toy::encoder);
            EXPECT_EQ(targets_of(data), targets_of(whole)) << name << " " << limit;
            EXPECT_EQ(data.stats().trained_tokens, whole.stats().trained_tokens) << name << " " << limit;
            EXPECT_LE(data.stats().longest, limit);
            EXPECT_EQ(data.stats().truncated_rows, 0);
            EXPECT_EQ(data.stats().rows - data.stats().pieces + data.stats().split_rows, whole.stats().rows);
            for (int64_t i = 0; i < data.size(); ++i) {
                EXPECT_EQ(data.sample(i).positions[0], 0);
                EXPECT_GT(data.targets(i), 0);
                EXPECT_EQ(data.piece(i), i > 0 && data.row(i) == data.row(i - 1) ? data.piece(i - 1) + 1 : 0);
            }
        }
    }
}

TEST(LongRows, PlainTextIsSplitAndOtherRowsAreCutUnlessToldOtherwise) {
    const toy::Folder folder;
    const auto text = folder.write("a.txt", "abcdefghijkl\n\nxyz");
    const auto alpaca = folder.write("b.jsonl", R"({"instruction": "a", "output": "bcdefghijklmnop"})");
    DatasetOptions options;
    options.max_seq_length = 8;
    const Dataset split = Dataset::load(text, options, &toy::encoder);
    ASSERT_EQ(split.size(), 3);  // BOS + 12 + EOS: 8 and, after the last of these, 6
    EXPECT_EQ(split.sample(0).ids, [] {
        Ints ids{toy::bos};
        for (const int32_t id : toy::bytes("abcdefg")) ids.push_back(id);
        return ids;
    }());
    EXPECT_EQ(split.sample(1).ids.front(), toy::bytes("g").front());
    EXPECT_EQ(split.sample(1).ids.back(), toy::eos);
    EXPECT_EQ(split.stats().split_rows, 1);
    EXPECT_EQ(split.stats().pieces, 2);
    EXPECT_EQ(Dataset::load(alpaca, options, &toy::encoder).stats().truncated_rows, 1);

    options.long_rows = config::LongRows::truncate;
    EXPECT_EQ(Dataset::load(text, options, &toy::encoder).stats().truncated_rows, 1);
    options.long_rows = config::LongRows::split;
    EXPECT_EQ(Dataset::load(alpaca, options, &toy::encoder).stats().trained_tokens, 16);
    options.long_rows = config::LongRows::drop;
    Dataset data;
    const std::string log = toy::logged([&] { data = Dataset::load(text, options, &toy::encoder); });
    EXPECT_EQ(data.size(), 1);
    EXPECT_EQ(data.stats().long_rows, 1);
    toy::expect_contains(log, {"omitted 1 of 2 rows of more than 8 tokens", "a.txt:1"});
    toy::expect_contains(toy::message_of("data.no-usable-rows", [&] { Dataset::load(alpaca, options, &toy::encoder); }),
                         {"none of its 1 rows can be used", "1 too long"});
}

TEST(ShortRows, RowsAndPiecesOfFewerTokensAreLeftOut) {
    const toy::Folder folder;
    const auto rows = folder.write("a.jsonl", R"({"input_ids": [1, 2, 3, 4, 5, 6, 7]}
{"input_ids": [1, 2]}
{"input_ids": [1, 2, 3]}
)");
    DatasetOptions options;
    options.min_length = 3;
    Dataset data;
    const std::string log = toy::logged([&] { data = Dataset::load(rows, options, nullptr); });
    EXPECT_EQ(data.size(), 2);
    EXPECT_EQ(data.sample(1).ids, (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(data.stats().short_rows, 1);
    toy::expect_contains(log, {"omitted 1 of 3 rows of fewer than 3 tokens (data.min_length)", "a.jsonl:2"});
    // A row is measured before it is cut, and a piece by itself: 7 tokens are pieces of 6 and, with one again, 2.
    options.max_seq_length = 6;
    options.long_rows = config::LongRows::truncate;
    options.min_length = 7;
    EXPECT_EQ(Dataset::load(rows, options, nullptr).sample(0).ids.size(), 6U);
    options.long_rows = config::LongRows::split;
    options.min_length = 3;
    const Dataset pieces = Dataset::load(rows, options, nullptr);
    EXPECT_EQ(pieces.size(), 2);
    EXPECT_EQ(pieces.sample(0).ids.size(), 6U);
    options.min_length = 8;
    toy::expect_contains(toy::message_of("data.no-usable-rows", [&] { Dataset::load(rows, options, nullptr); }),
                         {"3 too short"});
}

TEST(LongRows, APieceWithoutATargetIsNoRow) {
    const toy::Folder folder;
    DatasetOptions options;
    options.max_seq_length = 8;
    options.long_rows = config::LongRows::split;
    // The prompt alone fills two pieces.
    const Dataset data = Dataset::load(folder.write("a.jsonl", R"({"instruction": "twelve bytes", "output": "yes"})"),
                                       options, &toy::encoder);
    EXPECT_EQ(data.size(), 1);
    EXPECT_EQ(data.stats().trained_tokens, 4);
    EXPECT_EQ(data.stats().masked_rows, 0);
}

TEST(LongRows, PiecesOfARowStayOnOneSideOfASplit) {
    const toy::Folder folder;
    std::string text;
    for (int row = 0; row < 30; ++row) text += "many bytes that make several pieces\n\n";
    DatasetOptions options;
    options.max_seq_length = 8;
    const auto [train, held_out] = Dataset::load(folder.write("a.txt", text), options, &toy::encoder).split(10, 3);
    std::set<int64_t> rows[2];
    for (int64_t i = 0; i < train.size(); ++i) rows[0].insert(train.row(i));
    for (int64_t i = 0; i < held_out.size(); ++i) rows[1].insert(held_out.row(i));
    EXPECT_EQ(rows[0].size(), 20u);
    EXPECT_EQ(rows[1].size(), 10u);
    for (const int64_t row : rows[1]) EXPECT_FALSE(rows[0].contains(row));
    EXPECT_EQ(train.stats().split_rows, 20);
}

}  // namespace
}  // namespace unsloth::data
