// What options say together.
#include "tests/config/support.h"

namespace unsloth::testing {
namespace {

TEST(Settle, FullTrainingTurnsFourBitOffUnlessAskedForIt) {
    EXPECT_FALSE(config::load_config({}, {"--finetuning_type", "full"}).config.model.load_in_4bit);
    const std::string message = flag_error({"--finetuning_type", "full", "--load_in_4bit"});
    EXPECT_CONTAINS(message, "load_in_4bit");
    EXPECT_CONTAINS(message, "Set model.load_in_4bit to false");
}

TEST(Settle, TheBasesTypeIsSaidOnce) {
    const auto model = [](const std::vector<std::string>& flags) {
        return config::load_config({}, flags).config.model;
    };
    EXPECT_TRUE(model({}).load_in_4bit);
    EXPECT_FALSE(model({"--load_in_8bit"}).load_in_4bit);
    EXPECT_TRUE(model({"--precision", R"({"default": "fp4"})", "--load_in_4bit"}).load_in_4bit);
    const auto int8 = model({"--precision", R"({"default": "int8", "model.layers.0": "bf16"})"});
    EXPECT_TRUE(int8.load_in_8bit && !int8.load_in_4bit);
    EXPECT_TRUE(model({"--precision", R"({"model.layers.0": "bf16"})"}).load_in_4bit);
    EXPECT_CONTAINS(flag_error({"--load_in_8bit", "--load_in_4bit"}, "option.conflict"),
                    "model.load_in_4bit true cannot be combined with model.load_in_8bit true");
    EXPECT_CONTAINS(flag_error({"--load_in_8bit", "--precision", R"({"default": "nf4"})"}),
                    "the default is nf4, but model.load_in_8bit is true");
    EXPECT_CONTAINS(flag_error({"--load_in_4bit", "--precision", R"({"default": "bf16"})"}),
                    "the default is bf16, but model.load_in_4bit is true");
    EXPECT_CONTAINS(flag_error({"--modules_to_save", "lm_head", "--precision", R"({"lm_head": "int8"})"}),
                    "lora.modules_to_save trains lm_head");
    for (const char* flag : {"--load_in_8bit", "--precision={\"model.layers.0\": \"bf16\"}"})
        EXPECT_CONTAINS(flag_error({"--finetuning_type", "full", flag}),
                        "cannot be combined with lora.finetuning_type full");
}

TEST(Settle, CodesAreOfAFrozenBaseWithoutDora) {
    EXPECT_EQ(config::load_config({}, {"--compute_dtype", "fp8"}).config.model.compute_dtype, spec::CodedProducts::dx)
        << "the one whose gradients stay near bf16's";
    for (const char* const compute : {"fp8_both", "fp8_backward", "int8"}) {
        const std::string option = std::string("model.compute_dtype ") + compute;
        EXPECT_STREQ(name_of(config::load_config({}, {"--compute_dtype", compute}).config.model.compute_dtype),
                     compute);
        const std::string full = flag_error({"--compute_dtype", compute, "--finetuning_type", "full", "--use_dora"});
        EXPECT_CONTAINS(full, option + " cannot be combined with lora.finetuning_type full");
        EXPECT_EQ(full.find("magnitudes"), std::string::npos) << full;
        const std::string dora = flag_error({"--compute_dtype", compute, "--use_dora"});
        EXPECT_CONTAINS(dora, option);
        EXPECT_CONTAINS(dora, "DoRA's magnitudes");
    }
}

TEST(Settle, WeightsOfFewerBitsLieExpandedAndFrozen) {
    const auto loaded = config::load_config({}, {"--weight_mantissa_bits", "3", "--weight_cache", "on"});
    EXPECT_EQ(loaded.config.hardware.weight_mantissa_bits, 3);
    EXPECT_CONTAINS(flag_error({"--weight_mantissa_bits", "3"}, "option.no-effect"),
                    "set hardware.dequantized_weights to on");
    for (const auto& [flag, option] : {std::pair{"--compute_dtype=fp8_both", "model.compute_dtype"},
                                       {"--dtype=float16", "model.dtype"},
                                       {"--finetuning_type=full", "lora.finetuning_type"}}) {
        const std::string message = flag_error({"--weight_mantissa_bits", "3", "--weight_cache", "on", flag});
        EXPECT_CONTAINS(message, "hardware.weight_mantissa_bits");
        EXPECT_CONTAINS(message, option);
    }
}

TEST(Settle, TheBasesTypesReadBack) {
    const auto loaded = config::load_config({}, {"--precision", R"({"default": "int8", "lm_head": "nf4"})"});
    const auto again = load_text(config::config_to_json(loaded.config));
    EXPECT_EQ(config::config_to_json(again.config), config::config_to_json(loaded.config));
}

TEST(Settle, FullTrainingTakesNoAdapterOptions) {
    EXPECT_CONTAINS(flag_error({"--finetuning_type", "full", "--target_modules", "q_proj"}), "lora.target_modules");
    EXPECT_CONTAINS(flag_error({"--finetuning_type", "full", "--modules_to_save", "lm_head"}), "lora.modules_to_save");
    EXPECT_CONTAINS(flag_error({"--finetuning_type", "full", "--rank_pattern", "{\"a\":1}"}), "lora.rank_pattern");
    EXPECT_CONTAINS(flag_error({"--finetuning_type", "full", "--adapter_name_or_path", "a"}), "adapter_name_or_path");
    const auto loaded = config::load_config({}, {"--finetuning_type", "full", "--r", "4"});
    ASSERT_EQ(loaded.notes.size(), 1u);
    EXPECT_CONTAINS(loaded.notes[0], "lora.r has no effect");
}

TEST(Settle, AFullTrainingConfigurationReadsBack) {
    const auto loaded = config::load_config({}, {"--finetuning_type", "full", "--warmup_ratio", "0.1"});
    const auto again = load_text(config::config_to_json(loaded.config));
    EXPECT_EQ(config::config_to_json(again.config), config::config_to_json(loaded.config));
}

TEST(Settle, AdaptersNeedAModuleAndALayer) {
    EXPECT_CONTAINS(file_error(R"({"lora": {"target_modules": []}})"), "lora.target_modules is empty");
    EXPECT_CONTAINS(file_error(R"({"lora": {"layers_to_transform": []}})"), "lora.layers_to_transform is empty");
    EXPECT_CONTAINS(file_error(R"({"lora": {"target_modules": ["q_proj", "q_proj"]}})"), "'q_proj' is listed twice");
}

TEST(Settle, EvaluationRowsComeFromOnePlace) {
    EXPECT_CONTAINS(flag_error({"--val_size", "0.1", "--eval_file", "e"}, "option.conflict"),
                    "data.eval_file cannot be combined with data.val_size");
    EXPECT_CONTAINS(flag_error({"--val_size", "1.5"}, "option.out-of-range"), "whole number of rows");
    EXPECT_CONTAINS(flag_error({"--eval_steps", "10"}, "option.no-evaluation"),
                    "needs data.eval_file, data.eval_files, data.eval_split or data.val_size");
    EXPECT_EQ(config::load_config({}, {"--eval_steps", "10", "--val_size", "3"}).config.training.eval_steps, 10);
    EXPECT_EQ(config::load_config({}, {"--eval_steps", "10", "--eval_file", "e"}).config.training.eval_steps, 10);
}

TEST(Settle, TheBestEvaluationNeedsSomeToBeFound) {
    const std::vector<std::string> evaluated = {"--eval_steps", "10", "--val_size", "3"};
    const auto with = [&](std::vector<std::string> flags) {
        flags.insert(flags.end(), evaluated.begin(), evaluated.end());
        return flags;
    };
    for (const char* option : {"--early_stopping_patience=2", "--load_best_model_at_end=true"}) {
        EXPECT_CONTAINS(flag_error({option, "--val_size", "3"}), "needs training.eval_steps");
        EXPECT_NO_THROW(config::load_config({}, with({option})));
    }
    EXPECT_CONTAINS(flag_error(with({"--early_stopping_threshold", "0.1"})),
                    "only applies with training.early_stopping_patience");
    EXPECT_CONTAINS(flag_error({"--metric_for_best_model", "accuracy"}), "an evaluation has no eval_accuracy");
    EXPECT_CONTAINS(flag_error({"--metric_for_best_model", "law_loss"}),
                    "It has eval_loss, eval_token_accuracy, eval_perplexity.");
    const auto sets =
        config::load_config({}, {"--metric_for_best_model", "law_loss", "--eval_files", R"({"law": "f"})"});
    EXPECT_EQ(config::best_metric(sets.config.training), "eval_law_loss");
}

// As transformers derives it.
TEST(Settle, MoreIsBetterOfAllButLosses) {
    const auto of = [](const char* metric, const char* greater) {
        return config::more_is_better(load_text(cat(R"({"training": {"objective": "dpo", "metric_for_best_model": ")",
                                                    metric, R"(", "greater_is_better": )", greater, "}}"))
                                          .config.training);
    };
    EXPECT_FALSE(of("loss", "null"));
    EXPECT_FALSE(of("eval_nll_loss", "null"));
    EXPECT_TRUE(of("rewards/margins", "null"));
    EXPECT_TRUE(of("eval_loss", "true"));
    EXPECT_FALSE(of("token_accuracy", "false"));
    EXPECT_EQ(load_text(R"({"training": {"metric_for_best_model": null}})").config.training.metric_for_best_model,
              "eval_loss");
}

TEST(Settle, AWarmupRatioReplacesTheDefaultSteps) {
    const auto loaded = config::load_config({}, {"--warmup_ratio", "0.1"});
    EXPECT_EQ(loaded.config.training.warmup_steps, 0);
    EXPECT_EQ(loaded.config.training.warmup_ratio, 0.1);
    EXPECT_EQ(config::load_config({}, {}).config.training.warmup_steps, 5);
    EXPECT_CONTAINS(flag_error({"--warmup_ratio", "0.1", "--warmup_steps", "3"}),
                    "cannot be combined with training.warmup_ratio");
    EXPECT_EQ(config::load_config({}, {"--warmup_ratio", "0", "--warmup_steps", "3"}).config.training.warmup_steps, 3);
}

TEST(Settle, ScheduleArgumentsBelongToTheSchedule) {
    EXPECT_CONTAINS(flag_error({"--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", "{\"num_cycle\": 1}"}),
                    "Did you mean num_cycles?");
    EXPECT_CONTAINS(flag_error({"--lr_scheduler_kwargs", "{\"num_cycles\": 1}"}), "takes no arguments");
    EXPECT_CONTAINS(flag_error({"--lr_scheduler_type", "polynomial", "--lr_scheduler_kwargs", "{\"exponent\": 1}"}),
                    "It takes: lr_end, power.");
}

TEST(Settle, DeviceSyntax) {
    for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:12"})
        EXPECT_EQ(config::load_config({}, {"--device", good}).config.hardware.device, good);
    for (const char* bad : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CPU", "", "cuda:99999999999999999999"})
        EXPECT_CONTAINS(flag_error({"--device", bad}), "expected auto, cpu, cuda or cuda:N");
}

TEST(Settle, ResumingIsNotOverwriting) {
    EXPECT_EQ(config::load_config({}, {"--resume_from_checkpoint", "auto"}).config.training.resume_from_checkpoint,
              "auto");
    EXPECT_CONTAINS(flag_error({"--resume_from_checkpoint", "auto", "--overwrite_output_dir", "true"}),
                    "overwrite_output_dir");
}

TEST(Settle, TheOutputFolderHasAName) {
    EXPECT_CONTAINS(flag_error({"--output_dir", ""}), "training.output_dir is empty");
}

TEST(Reports, NamesOfOthersAndWhatFollows) {
    const auto of = [](const std::string& training) { return load_text("{" + training + "}"); };
    EXPECT_TRUE(of(R"("training": {"report_to": "none"})").config.training.report_to.empty());
    EXPECT_EQ(of(R"("training": {"report_to": "tensorboard"})").config.training.report_to,
              std::vector<std::string>{"tensorboard"});
    const config::LoadedConfig wandb = of(R"("training": {"report_to": ["wandb", "html"], "output_dir": "out/x"})");
    EXPECT_EQ(wandb.config.training.report_to, (std::vector<std::string>{"html", "tensorboard"}));
    ASSERT_EQ(wandb.notes.size(), 1u);
    EXPECT_CONTAINS(wandb.notes.front(), "wandb sync out/x/tensorboard");
    EXPECT_EQ(of(R"("training": {"report_to": ["prometheus"]})").config.logging.metrics_port, 9400);
    EXPECT_EQ(of(R"("logging": {"metrics_port": 1234})").config.training.report_to,
              std::vector<std::string>{"prometheus"});
    EXPECT_EQ(config::load_config({}, {"--report_to", "tensorboard,html"}).config.training.report_to.size(), 2u);
    EXPECT_CONTAINS(file_error(R"({"training": {"report_to": ["html"]}, "logging": {"metrics_file": ""}})"),
                    "draws what logging.metrics_file holds");
    EXPECT_CONTAINS(file_error(R"({"training": {"report_to": ["html", "html"]}})"), "listed twice");
    EXPECT_EQ(config::load_config({}, {"--quiet"}).config.logging.level, "warning");
    EXPECT_EQ(config::load_config({}, {"--progress", "json"}).config.logging.progress, config::ProgressStyle::json);
}

}  // namespace
}  // namespace unsloth::testing
