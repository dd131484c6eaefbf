#include "unsloth/data/training_data.h"

#include <gtest/gtest.h>

#include "data/toy.h"

namespace unsloth::data {
namespace {

std::string rows(const std::string& column, int count) {
    std::string text;
    for (int row = 0; row < count; ++row)
        text += column == "text" ? cat("{\"text\": \"row ", row, "\"}\n") : cat("{\"input_ids\": [1, 2, ", row, "]}\n");
    return text;
}

struct Files {
    toy::Folder folder;
    std::string text = folder.write("text.jsonl", rows("text", 20)).string();
    std::string tokens = folder.write("tokens.jsonl", rows("input_ids", 10)).string();
    int encoders = 0;
    std::vector<std::string> templates;

    TrainingData load(const config::Config& config, const ModelLimits& limits = {}) {
        return load_training_data(config, limits, [&](const std::string& name) -> std::unique_ptr<RowEncoder> {
            templates.push_back(name);
            ++encoders;
            return std::make_unique<toy::Encoder>();
        });
    }
};

TEST(TrainingData, TokenisedRowsNeedNoTokenizer) {
    Files files;
    config::Config config;
    config.data.train_file = files.tokens;
    const TrainingData data = files.load(config);
    EXPECT_EQ(data.train.size(), 10);
    EXPECT_FALSE(data.eval.has_value());
    EXPECT_EQ(files.encoders, 0);
    EXPECT_EQ(load_training_data(config, {}, nullptr).train.size(), 10);

    config.data.train_file = files.text;
    toy::expect_contains(toy::message_of("tokenizer.not-found", [&] { load_training_data(config, {}, nullptr); }),
                         {"tokenizer"});
}

TEST(TrainingData, EvalFileOrPartOfTheRows) {
    Files files;
    config::Config config;
    config.data.train_file = files.text;
    config.data.eval_file = files.text;
    TrainingData data = files.load(config);
    EXPECT_EQ(files.encoders, 1);
    EXPECT_EQ(data.eval.value().size(), 20);

    config.data.val_size = 0.25;
    toy::expect_contains(toy::message_of("option.conflict", [&] { files.load(config); }), {"eval_file", "val_size"});
    config.data.eval_file.reset();
    data = files.load(config);
    EXPECT_EQ(data.train.size(), 15);
    EXPECT_EQ(data.eval.value().size(), 5);

    config.data.train_file.clear();
    toy::expect_contains(toy::message_of("option.missing", [&] { files.load(config); }), {"data.train_file"});
}

TEST(TrainingData, RowsThatAreTrainedAndEvaluatedAreCounted) {
    Files files;
    config::Config config;
    config.data.train_file = files.text;
    const auto warned = [&](const std::string& train, const std::string& eval) {
        config.data.train_split = train;
        config.data.eval_split = eval;
        testing::internal::CaptureStderr();
        files.load(config);
        return testing::internal::GetCapturedStderr();
    };
    toy::expect_contains(warned("[:60%]", "[40%:]"), {"[40%:] holds the training rows in 4 of its 12 rows"});
    toy::expect_contains(warned("[5:]", "[5:]"), {"holds the training rows: the evaluation"});
    toy::expect_contains(warned("", "[:2]+[:1]"), {"holds the training rows: the evaluation"});
    EXPECT_EQ(warned("[:60%]", "[60%:]").find("holds the training rows"), std::string::npos);
    config.data.eval_file = files.folder.write("other.jsonl", rows("text", 1) + "{\"text\": \"row 99\"}\n").string();
    toy::expect_contains(warned("", ""), {"other.jsonl holds the training rows in 1 of its 2 rows"});
}

TEST(TrainingData, SourcesWithTemplatesAndBoundsOfTheirOwn) {
    Files files;
    config::Config config;
    config.data.datasets = {{.path = files.text, .max_samples = 3},
                            {.path = files.text, .template_name = "chatml", .max_samples = 20},
                            {.path = files.text, .template_name = "chatml"}};
    config.data.cache_dir = (files.folder.path() / "cache").string();
    const TrainingData data = load_training_data(
        config, {},
        [](const std::string& name) -> std::unique_ptr<RowEncoder> {
            if (name.empty()) return std::make_unique<toy::Encoder>();
            struct Other : toy::Encoder {
                EncodedRow text(std::string_view text) const override { return toy::Encoder::text(cat("!", text)); }
            };
            return std::make_unique<Other>();
        },
        "two encoders");
    ASSERT_EQ(data.train.size(), 43);
    const toy::Encoder plain;
    for (const int64_t i : {0, 2}) EXPECT_EQ(data.train.sample(i).ids, plain.text(cat("row ", i)).ids);
    for (const int64_t i : {3, 22, 23, 42})
        EXPECT_EQ(data.train.sample(i).ids, plain.text(cat("!row ", (i - 3) % 20)).ids);
    EXPECT_EQ(data.train.source(2), 0);
    EXPECT_EQ(data.train.source(3), 1);
    EXPECT_EQ(data.train.source(23), 2);
    // Another bound is another entry of the cache.
    config.data.datasets[0].max_samples = 4;
    EXPECT_EQ(files.load(config).train.size(), 44);
    EXPECT_EQ(files.templates, (std::vector<std::string>{"", "chatml"}));
}

TEST(TrainingData, DuplicatesAreLeftOut) {
    Files files;
    config::Config config;
    config.data.train_file = files.folder
                                 .write("twice.jsonl", R"({"input_ids": [1, 2, 3]}
{"input_ids": [1, 2, 4]}
{"input_ids": [1, 2, 3]}
{"input_ids": [1, 2, 3], "labels": [1, -100, 3]}
{"input_ids": [1, 2, 4]}
{"input_ids": [1, 2]}
)")
                                 .string();
    EXPECT_EQ(files.load(config).train.size(), 6);
    config.data.drop_duplicates = true;
    const TrainingData data = files.load(config);
    ASSERT_EQ(data.train.size(), 4);
    EXPECT_EQ(data.train.row(2), 3) << "equal tokens with other labels are another row";
    EXPECT_EQ(data.train.row(3), 5);
    EXPECT_EQ(data.train.stats().duplicate_rows, 2);
    EXPECT_EQ(data.train.stats().tokens, 11);
    // Pieces of a long row count together: that two rows begin alike does not make them equal.
    config.data.train_file = files.folder
                                 .write("long.jsonl", R"({"input_ids": [1, 2, 3, 4, 5, 6]}
{"input_ids": [1, 2, 3, 4, 5, 7]}
{"input_ids": [1, 2, 3, 4, 5, 6]}
)")
                                 .string();
    config.model.max_seq_length = 4;
    config.data.long_rows = config::LongRows::split;
    EXPECT_EQ(files.load(config).train.size(), 4);
}

TEST(TrainingData, NamedEvaluationFiles) {
    Files files;
    config::Config config;
    config.data.train_file = files.text;
    config.data.eval_files = {{"words", files.text}, {"tokens", files.tokens}};
    const Dataset eval = files.load(config).eval.value();
    ASSERT_EQ(eval.size(), 30);
    EXPECT_EQ(eval.source(19), 0);
    EXPECT_EQ(eval.source(20), 1);
    const EvalLoader loader(eval, 60);
    std::vector<int64_t> labels(2, 0);
    for (int64_t i = 0; i < loader.batches(); ++i) {
        const Batch batch = loader.batch(i);
        for (const int64_t row : batch.rows) EXPECT_EQ(row >= 20, loader.source(i) == 1) << row;
        labels[static_cast<std::size_t>(loader.source(i))] += batch.labels;
    }
    EXPECT_EQ(loader.extents(), (std::vector<Extent>{{20, labels[0]}, {10, labels[1]}}));
    EXPECT_EQ(labels[0] + labels[1], eval.stats().trained_tokens);
}

TEST(TrainingData, OptionsReachTheRowsAndTheLoader) {
    Files files;
    config::Config config;
    config.data.train_file = files.text;
    config.data.packing = true;
    config.data.shuffle = false;
    config.model.max_seq_length = 5;
    config.training.per_device_train_batch_size = 3;
    config.training.gradient_accumulation_steps = 5;
    config.training.seed = 11;
    EXPECT_EQ(files.load(config).train.stats().longest, 5);
    const LoaderOptions loader = loader_options(config, 1, 2);
    EXPECT_TRUE(loader.packing && !loader.shuffle);
    EXPECT_EQ(loader.max_seq_length, 5);
    EXPECT_EQ(loader.per_device_train_batch_size, 3);
    EXPECT_EQ(loader.gradient_accumulation_steps, 5);
    EXPECT_EQ(loader.seed, 11u);
    EXPECT_EQ(loader.rank, 1);
    EXPECT_EQ(loader.world_size, 2);

    const ModelLimits small{100, 4};
    toy::expect_contains(toy::message_of("data.token-columns", [&] { files.load(config, small); }),
                         {"text.jsonl:1", "vocabulary"});
    const ModelLimits short_model{toy::vocabulary, 4};
    toy::expect_contains(toy::message_of("data.row-too-long", [&] { files.load(config, short_model); }),
                         {"text.jsonl:1", "4 positions"});

    config.data.train_on_prompt = true;
    const toy::Folder folder;
    config.data.train_file = folder.write("a.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}\nbad\n").string();
    config.data.skip_bad_rows = true;
    EXPECT_EQ(files.load(config).train.targets(0), 4);
    config.data.format = config::DataFormat::text;
    toy::expect_contains(toy::message_of("data.no-usable-rows", [&] { files.load(config); }), {"none of its 2 rows"});
}

TEST(TrainingData, TokenisedRowsAreExaminedForTwoBos) {
    Files files;
    config::Config config;
    config.data.train_file =
        files.folder.write("two.jsonl", "{\"input_ids\": [1, 1, 5]}\n{\"input_ids\": [1, 5]}\n").string();
    ModelLimits limits;
    limits.bos_id = 1;
    toy::expect_contains(files.load(config, limits).train.stats().warnings.at(0),
                         {"1 of 2 rows begin with two BOS tokens", "two.jsonl:1"});
    EXPECT_TRUE(files.load(config).train.stats().warnings.empty()) << "which token BOS is is not known";
}

TEST(TrainingData, RowsWithoutATargetAreSetAside) {
    Files files;
    config::Config config;
    config.data.train_file = files.folder
                                 .write("masked.jsonl", R"({"input_ids": [1, 2, 3]}
{"input_ids": [1, 2, 3], "labels": [1, -100, -100]}
oops
{"input_ids": [4, 5, 6]}
{"input_ids": [7, 8, 9]}
)")
                                 .string();
    config.data.val_size = 1;
    toy::expect_contains(toy::message_of("data.row-syntax", [&] { files.load(config); }), {"masked.jsonl:3"});
    const TrainingData data = load_training_data(config, {}, nullptr, {}, {RefusedRows::set_aside, false});
    EXPECT_EQ(data.train.size(), 2);
    EXPECT_EQ(data.eval.value().size(), 1);
    ASSERT_EQ(data.masked_train.size(), 1);
    EXPECT_EQ(data.masked_train.sample(0).row, 1);
    EXPECT_EQ(data.train.stats().bad_rows, 1);
    EXPECT_EQ(data.train.stats().masked_rows, 1);

    config.data.skip_bad_rows = true;  // the same rows as a run takes that leaves them out
    const TrainingData run = files.load(config);
    ASSERT_EQ(run.train.size(), 2);
    for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(run.train.row(i), data.train.row(i));
    EXPECT_EQ(run.eval.value().row(0), data.eval.value().row(0));
}

TEST(TrainingData, AugmentedRowsAreNotSplit) {
    Files files;
    config::Config config;
    config.data.train_file = files.folder
                                 .write("copies.jsonl", R"({"input_ids": [1, 2, 3]}
{"input_ids": [1, 2, 4], "augmentation": {"of": 0, "by": "swap"}}
{"input_ids": [1, 2, 5], "augmentation": null}
)")
                                 .string();
    EXPECT_EQ(files.load(config).train.stats().augmented_rows, 1);
    config.data.val_size = 1;
    toy::expect_contains(toy::message_of("data.held-out-copies", [&] { files.load(config); }),
                         {"1 augmented copies", "data.eval_file"});
}

}  // namespace
}  // namespace unsloth::data
