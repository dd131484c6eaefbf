#include "unsloth/data/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

/// The example's tokenizer: byte-level, it adds <|begin|>.
const tokenizer::Tokenizer& tokenizer() {
    static const tokenizer::Tokenizer loaded =
        tokenizer::Tokenizer::load(test::source_folder() / "examples/legal/base");
    return loaded;
}

/// Text of which the tokens of [begin, end) are trained.
Sample sample_of(const std::string& text, int64_t begin, int64_t end) {
    Sample sample;
    sample.ids = tokenizer().encode(text, true);
    sample.labels.assign(sample.ids.size(), ignore_label);
    for (int64_t t = begin; t < std::min(end, static_cast<int64_t>(sample.ids.size())); ++t)
        sample.labels[static_cast<std::size_t>(t)] = sample.ids[static_cast<std::size_t>(t)];
    for (std::size_t t = 0; t < sample.ids.size(); ++t) sample.positions.push_back(static_cast<int32_t>(t));
    return sample;
}

TEST(ShowTokens, TrainedRunsStandBetweenBracketsAndNothingIsLost) {
    const Sample sample = sample_of("The term is one year.", 3, 5);
    const std::string shown = show_tokens(sample, &tokenizer(), Marks::brackets);
    std::string plain = shown;
    for (const std::string mark : {"\u27e6", "\u27e7"}) {
        const auto at = plain.find(mark);
        ASSERT_NE(at, std::string::npos) << shown;
        plain.erase(at, mark.size());
        EXPECT_EQ(plain.find(mark), std::string::npos) << shown;
    }
    EXPECT_EQ(plain, tokenizer().decode(sample.ids, false) + "\n");
    EXPECT_EQ(target_ranges(sample), (Ranges{{3, 5}}));
    const auto inside = shown.substr(shown.find("\u27e6") + 3, shown.find("\u27e7") - shown.find("\u27e6") - 3);
    EXPECT_EQ(inside, tokenizer().decode(std::vector<int32_t>{sample.ids[3], sample.ids[4]}, false));
}

TEST(ShowTokens, ColourEndsWithEachLineAndTextCannotSteerTheTerminal) {
    const std::string shown = show_tokens(sample_of("a\nb\x1b[31m\x07", 0, 100), &tokenizer(), Marks::colour);
    EXPECT_EQ(shown, "\x1b[2m<|begin|>\x1b[0m\x1b[1;32ma\x1b[0m\n\x1b[1;32mb\\u001b[31m\\u0007\x1b[0m\n");
}

TEST(ShowTokens, TheFirstTokenOfASegmentIsNoTarget) {
    Sample sample;
    sample.ids = sample.labels = {5, 6, 7, 8};
    sample.positions = {0, 1, 0, 1};
    sample.segments = {{0, 2}, {2, 2}};
    EXPECT_EQ(target_ranges(sample), (Ranges{{1, 2}, {3, 4}}));
    EXPECT_EQ(show_tokens(sample, nullptr, Marks::brackets),
              "5 \u27e66\u27e7\n-- the next segment --\n7 \u27e68\u27e7\n");
}

TEST(ShowTokens, CharactersThatARunCutsAreShownAsReplacements) {
    const Sample sample =
        sample_of("x\u4e2d", 3, 4);  // a character of three bytes, which this vocabulary has no token for
    ASSERT_GT(sample.ids.size(), 4u);
    const std::string shown = show_tokens(sample, &tokenizer(), Marks::brackets);
    EXPECT_NE(shown.find("\ufffd"), std::string::npos) << shown;
}

struct Data {
    toy::Folder folder;
    config::Config config;

    Data() {
        std::string rows;
        for (int row = 0; row < 20; ++row) {
            std::string ids = cat("1, ", row % 18);  // rows 18 and 19 are rows 0 and 1 again
            for (int t = 0; t < row % 18; ++t) ids += ", 7";
            rows += cat("{\"input_ids\": [", ids, "]}\n");
        }
        config.data.train_file =
            folder.write("train.jsonl", rows + "{\"input_ids\": [3, 4], \"labels\": [-100, -100]}\nbad\n").string();
        config.data.eval_file =
            folder.write("eval.jsonl", "{\"input_ids\": [1, 0]}\n{\"input_ids\": [9, 9, 9]}\n").string();
        config.training.per_device_train_batch_size = 2;
        config.training.gradient_accumulation_steps = 3;
        config.training.num_train_epochs = 2;
    }
    DataReport report(int64_t shown = 0) {
        return make_report(load_training_data(config, {}, nullptr, {}, {RefusedRows::set_aside, false}), config,
                           Error("data.all-masked", "because"), shown);
    }
};

TEST(Report, CountsWhatIsThere) {
    Data data;
    const DataReport report = data.report(4);
    const SetReport& train = report.train;
    EXPECT_EQ(train.read, 22);
    EXPECT_EQ(train.bad, 1);
    EXPECT_EQ(train.masked, 1);
    EXPECT_EQ(train.rows, 20);
    EXPECT_EQ(train.duplicates, 2);
    EXPECT_EQ(train.first_duplicates, (Ranges{{18, 0}, {19, 1}}));
    EXPECT_EQ(train.tokens, 18 * 2 + 17 * 18 / 2 + 2 + 3);
    EXPECT_EQ(train.trained_tokens, train.tokens - 20);
    EXPECT_EQ(train.shortest, 2);
    EXPECT_EQ(train.median, 9);
    EXPECT_EQ(train.p95, 18);
    EXPECT_EQ(train.longest, 19);
    int64_t rows = 0, next = 0;
    for (const LengthBin& bin : train.lengths) {
        EXPECT_EQ(bin.from, next);
        next = bin.to + 1;
        rows += bin.rows;
    }
    EXPECT_EQ(rows, 20);
    EXPECT_EQ(train.lengths.size(), 10u);  // of two lengths each
    EXPECT_EQ(train.lengths[1].rows, 4);   // lengths 2 and 3, twice

    ASSERT_TRUE(report.eval && report.steps);
    EXPECT_EQ(report.eval->rows, 2);
    EXPECT_EQ(report.shared, 1);
    EXPECT_EQ(report.steps->steps_per_epoch, 4);  // 10 micro-batches, 3 a step
    EXPECT_EQ(report.steps->total_steps, 8);
    EXPECT_EQ(report.steps->first_epoch.tokens, train.tokens);
    EXPECT_EQ(report.steps->first_epoch.labels, train.trained_tokens);

    std::vector<std::string> sets;
    for (const auto& [set, sample] : report.samples) sets.push_back(set);
    EXPECT_EQ(sets, (std::vector<std::string>{"training", "training", "training", "training", "evaluation", "masked"}));
    toy::expect_contains(report_text(report, nullptr, Marks::brackets),
                         {"training, row 3: 5 tokens, 4 trained", "all labels masked, row 20: 2 tokens, 0 trained",
                          "1 bad, 1 with all labels masked", "18 those of 0, 19 those of 1",
                          "A run with this configuration stops:\n  error[data.all-masked]: because"});
}

TEST(Report, HeldOutRowsAreAPartOfTheFile) {
    Data data;
    data.config.data.eval_file.reset();
    data.config.data.val_size = 0.25;
    const DataReport report = data.report();
    EXPECT_EQ(report.train.read, 22);
    EXPECT_EQ(report.train.rows, 15);
    ASSERT_TRUE(report.eval);
    EXPECT_TRUE(report.eval->held_out);
    EXPECT_EQ(report.eval->rows, 5);
    EXPECT_EQ(report.train.duplicates + report.eval->duplicates + report.shared, 2);
}

TEST(Report, LongRowsAreCountedAsWhatBecameOfThem) {
    Data data;
    data.config.model.max_seq_length = 6;
    DataReport report = data.report();
    EXPECT_EQ(report.train.truncated, 13);  // lengths 7 to 19
    data.config.data.long_rows = config::LongRows::split;
    const SetReport split = data.report().train;
    EXPECT_EQ(split.read, 22);
    EXPECT_EQ(split.truncated, 0);
    EXPECT_EQ(split.split, report.train.truncated);
    EXPECT_EQ(split.rows, 20 - split.split + split.pieces);
    EXPECT_EQ(split.trained_tokens, 18 + 17 * 18 / 2 + 3);  // as without a limit
    toy::expect_contains(report_text(data.report(), nullptr, Marks::brackets),
                         {"rows of the files, into ", cat(split.pieces)});
    data.config.data.long_rows = config::LongRows::drop;
    report = data.report();
    EXPECT_EQ(report.train.read, 22);
    EXPECT_EQ(report.train.too_long, split.split);
    EXPECT_EQ(report.train.rows, 20 - split.split);
    toy::expect_contains(report_text(report, nullptr, Marks::brackets),
                         {cat(split.split, " too long"), "train.jsonl:6"});
}

TEST(Report, PackingAndWeightsCountAnEpochAsItIsTrained) {
    Data data;
    data.config.data.packing = true;
    data.config.model.max_seq_length = 32;
    DataReport report = data.report();
    ASSERT_TRUE(report.steps);
    EXPECT_EQ(report.steps->first_epoch.room, 32 * report.steps->rows_per_epoch);
    EXPECT_EQ(report.steps->first_epoch.rows, 20);
    EXPECT_GT(report.steps->first_epoch.tokens, report.steps->first_epoch.room * 3 / 4);
    toy::expect_contains(report_text(report, nullptr, Marks::brackets),
                         {"packed rows", "of at most 32 tokens", "% full"});

    data.config.data.packing = false;
    data.config.data.datasets = {
        {.path = data.folder.write("a.jsonl", "{\"input_ids\": [1, 2]}\n").string(), .weight = 1},
        {.path = data.folder
                     .write("b.jsonl",
                            "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5, 6]}\n{\"input_ids\": [7, 8, 9]}\n")
                     .string(),
         .weight = 1}};
    data.config.data.train_file.clear();
    report = data.report();
    EXPECT_EQ(report.train.tokens, 11);
    EXPECT_EQ(report.steps->first_epoch.rows, 4);
    EXPECT_EQ(report.steps->first_epoch.tokens, 2 * 2 + 2 * 3);
}

TEST(Report, NothingToTrainOnIsSaidAsARunSaysIt) {
    Data data;
    data.config.data.train_file =
        data.folder.write("none.jsonl", "{\"input_ids\": [3, 4], \"labels\": [-100, -100]}\n").string();
    const DataReport report = make_report(
        load_training_data(data.config, {}, nullptr, {}, {RefusedRows::set_aside, false}), data.config, {}, 1);
    EXPECT_FALSE(report.steps);
    toy::expect_contains(report.refusal, {"no rows to train on"});
    EXPECT_EQ(report.refusal_id, ErrorId("data.too-few-rows"));
    toy::expect_contains(report_json(report, nullptr), {"\"refusal_id\": \"data.too-few-rows\""});
    EXPECT_EQ(report.samples.back().first, "masked");
}

TEST(Report, JsonHoldsTheSame) {
    Data data;
    const DataReport report = data.report(1);
    const Json json = Json::parse(report_json(report, &tokenizer()));
    EXPECT_EQ(json["train"]["rows"], 20);
    EXPECT_EQ(json["train"]["dropped"], (Json{{"bad", 1}, {"all_labels_masked", 1}}));
    EXPECT_EQ(json["train"]["too_long"], 0);
    EXPECT_EQ(json["eval"]["rows"], 2);
    EXPECT_EQ(json["steps"]["total_steps"], 8);
    EXPECT_EQ(json["refusal"], "because");
    EXPECT_EQ(json["warnings"].size(), 1u);
    const Json& row = json["rows"][0];
    EXPECT_EQ(row["ids"], (Json{1, 0}));
    EXPECT_EQ(row["trained"], (Json{{1, 2}}));
    EXPECT_EQ(row["text"], tokenizer().decode(std::vector<int32_t>{1, 0}, false));
    EXPECT_FALSE(row.contains("position_ids"));
}

}  // namespace
}  // namespace unsloth::data
