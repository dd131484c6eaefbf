// What `new` chooses, by plans that the tests make up.
#include "app/new_config/proposal.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/errors.h"

namespace unsloth::app {
namespace {

using config::Json;

constexpr int64_t gib = int64_t{1} << 30;

ModelFacts llama() {
    return {
        .path = "org/llama", .description = "llama", .positions = 8192, .from_hub = true, .has_chat_template = true};
}

RowFacts rows(int64_t count, int64_t longest = 700) {
    return {.file = "rows.jsonl", .format = "messages", .rows = count, .median = 200, .p99 = 500, .longest = longest};
}

/// Of a card with so many GiB, where a model in 16 bit takes 16 GiB, in 4 bit 5, and 1000 tokens of a pass one more.
Planner card(int64_t memory, double rate_of_4bit) {
    return [=](const config::LoadedConfig& loaded) {
        const config::Config& config = loaded.config;
        const int64_t rows = config.training.per_device_train_batch_size, tokens = rows * config.model.max_seq_length;
        const int64_t total = ((config.model.load_in_4bit ? 5 : 16) * gib) + tokens * gib / 1000;
        return engine_api::PlanEstimate{.device = "A card",
                                        .fits = total <= memory * gib,
                                        .budget_bytes = memory * gib,
                                        .total_bytes = total,
                                        .rows = rows,
                                        .micro_batches = config.training.gradient_accumulation_steps,
                                        .tokens_per_second = config.model.load_in_4bit ? rate_of_4bit : 1000,
                                        .keeps = "everything"};
    };
}

Json chosen(const RowFacts& rows, const Planner& planner, const ModelFacts& model = llama(), bool on_cpu = false) {
    return Json::parse(json_of(propose(model, rows, on_cpu, "out/run", planner).choices));
}

TEST(NewConfig, TakesTheWeightsThatAreFast) {
    EXPECT_EQ(chosen(rows(1000), card(80, 990))["model"]["load_in_4bit"], false);
    EXPECT_EQ(chosen(rows(1000), card(80, 1100))["model"]["load_in_4bit"], true);
    EXPECT_EQ(chosen(rows(1000), card(12, 500))["model"]["load_in_4bit"], true) << "the others do not fit";
    ModelFacts quantized = llama();
    quantized.quantized = true;
    EXPECT_FALSE(chosen(rows(1000), card(80, 500), quantized)["model"].contains("load_in_4bit"));
}

TEST(NewConfig, CutsAStepIntoMicroBatchesThatFit) {
    const auto batch = [](int64_t memory) {
        const Json training = chosen(rows(1000), card(memory, 2000))["training"];
        return std::pair{training["per_device_train_batch_size"].get<int>(),
                         training["gradient_accumulation_steps"].get<int>()};
    };
    EXPECT_EQ(batch(80), (std::pair{16, 1}));
    EXPECT_EQ(batch(8), (std::pair{4, 4}));  // 704 tokens a row
    EXPECT_EQ(batch(6), (std::pair{1, 16}));
}

TEST(NewConfig, FollowsTheRows) {
    const Json all = chosen(rows(1000), card(80, 500));
    EXPECT_EQ(all["model"]["max_seq_length"], 704) << "the longest, in whole units";
    EXPECT_EQ(all["data"]["val_size"], 50);
    EXPECT_EQ(all["training"]["num_train_epochs"], 2);
    EXPECT_EQ(all["training"]["eval_steps"], 24);  // a fifth of two times 950 / 16
    EXPECT_FALSE(all.contains("hardware"));
    EXPECT_EQ(chosen(rows(1000, 100000), card(80, 500))["model"]["max_seq_length"], 512) << "of 99 in 100";
    const Json few = chosen(rows(3), card(80, 500));
    EXPECT_EQ(few["training"]["per_device_train_batch_size"], 2);
    EXPECT_FALSE(few["data"].contains("val_size"));
    RowFacts copies = rows(1000);
    copies.augmented = true;
    EXPECT_FALSE(chosen(copies, card(80, 500))["data"].contains("val_size"));
    RowFacts pairs = rows(1000);
    pairs.objective = config::Objective::dpo;
    EXPECT_EQ(chosen(pairs, card(80, 500))["training"]["objective"], "dpo");
    EXPECT_EQ(chosen(rows(1000), card(80, 500), llama(), /*on_cpu=*/true)["hardware"]["device"], "cpu");
    RowFacts alpaca = rows(1000);
    alpaca.alpaca = true;
    EXPECT_EQ(chosen(alpaca, card(80, 500))["data"]["template"], "default");
}

TEST(NewConfig, WarmsUpInFewOfFewSteps) {
    EXPECT_FALSE(chosen(rows(1000), card(80, 500))["training"].contains("warmup_steps")) << "the default is few";
    EXPECT_EQ(chosen(rows(8), card(80, 500))["training"]["warmup_steps"], 0) << "of 6 steps";
    EXPECT_EQ(chosen(rows(40), card(80, 500))["training"]["warmup_steps"], 3) << "of 30 steps";
}

TEST(NewConfig, EvaluatesOnTheSplitThatIsThere) {
    RowFacts split = rows(1000);
    split.eval_split = "test";
    split.skipped = 2;
    const Json all = chosen(split, card(80, 500));
    EXPECT_EQ(all["data"]["eval_split"], "test");
    EXPECT_FALSE(all["data"].contains("val_size"));
    EXPECT_EQ(all["data"]["skip_invalid"], true);
    EXPECT_EQ(all["training"]["eval_steps"], 26);  // a fifth of two times 1000 / 16
}

TEST(NewConfig, ShortensRowsBeforeItGivesUp) {
    EXPECT_EQ(chosen(rows(1000, 4000), card(6, 500))["model"]["max_seq_length"], 512) << "halved until one row fits";
    try {
        (void)chosen(rows(1000), card(4, 500));
        ADD_FAILURE() << "nothing fits";
    } catch (const Error& error) {
        test::Expected("memory.plan-too-large").check(error);
        EXPECT_NE(std::string(error.what()).find("org/llama does not fit A card"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace unsloth::app
