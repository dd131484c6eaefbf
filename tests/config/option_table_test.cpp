// Every option: file -> Config -> JSON, flag -> Config -> JSON, and that each is bound to its own field.
#include <algorithm>
#include <map>

#include "tests/config/support.h"
#include "unsloth/config/option_table.h"

namespace unsloth::testing {
namespace {

Json effective(const config::LoadedConfig& loaded) {
    return Json::parse(config::config_to_json(loaded.config));
}

struct Example {
    Json value;
    Json companions = Json::object();  ///< sections with what this value needs
};

/// A run of reinforcement learning, with these options of its section.
Json grpo_with(Json options = Json::object()) {
    if (!options.contains("rewards") && !options.contains("replay_rollouts")) options["replay_rollouts"] = "r";
    return {{"training", {{"objective", "grpo"}}}, {"grpo", std::move(options)}};
}

// Values that the schema alone cannot find, because other options have a say.
const std::map<std::string, Example>& special_examples() {
    const Json dpo = {{"training", {{"objective", "dpo"}}}}, kto = {{"training", {{"objective", "kto"}}}};
    const Json evaluated = {{"data", {{"val_size", 2}}}, {"training", {{"eval_steps", 2}}}};
    Json held_out = grpo_with({{"rewards", Json::array({"a.py:b"})}});
    held_out["data"] = {{"eval_file", "f"}};
    const Json distill = {{"training", {{"objective", "distill"}}}, {"distill", {{"teacher", "model"}}}};
    static const std::map<std::string, Example> examples = {
        {"distill.teacher", {"other", distill}},
        {"distill.teacher_adapter", {"adapter", distill}},
        {"distill.teacher_load_in_4bit", {true, distill}},
        {"distill.teacher_device_map", {"sequential", distill}},
        {"distill.divergence", {"jsd", distill}},
        {"distill.jsd_beta",
         {0.375,
          {{"training", {{"objective", "distill"}}}, {"distill", {{"teacher", "model"}, {"divergence", "jsd"}}}}}},
        {"distill.alpha", {0.375, distill}},
        {"training.objective", {"dpo"}},
        {"training.decision_brier_weight", {0.5, {{"training", {{"objective", "decision"}}}}}},
        {"grpo.rewards", {Json::array({"a.py:b"}), grpo_with({{"replay_rollouts", "r"}})}},
        {"grpo.replay_rollouts", {"f", grpo_with({{"rewards", Json::array({1})}})}},
        {"grpo.reward_weights", {Json::array({1, 2}), grpo_with()}},
        {"grpo.steps_per_generation", {3, grpo_with()}},
        {"grpo.num_generations_eval", {2, held_out}},
        {"grpo.reward_clip_range", {Json::array({0, 1}), grpo_with({{"advantage", "leave_one_out"}})}},
        {"grpo.normalize_advantages", {true, grpo_with({{"advantage", "leave_one_out"}})}},
        {"grpo.kl_in_reward", {true, grpo_with({{"advantage", "leave_one_out"}})}},
        {"preference.loss_type", {"ipo", dpo}},
        {"preference.beta", {0.375, dpo}},
        {"preference.share_prompt", {false, dpo}},
        {"preference.reference", {"initial", dpo}},
        {"preference.reference_free", {true, dpo}},
        {"preference.label_smoothing", {0.375, dpo}},
        {"preference.simpo_gamma",
         {0.75, {{"training", {{"objective", "dpo"}}}, {"preference", {{"loss_type", "simpo"}}}}}},
        {"preference.rpo_alpha", {0.375, dpo}},
        {"preference.max_prompt_length", {64, dpo}},
        {"preference.truncation_mode",
         {"keep_start", {{"training", {{"objective", "dpo"}}}, {"preference", {{"max_prompt_length", 64}}}}}},
        {"training.hub_model_id", {"me/it", {{"training", {{"push_to_hub", true}}}}}},
        {"training.hub_private_repo", {false, {{"training", {{"push_to_hub", true}}}}}},
        {"preference.desirable_weight", {0.375, kto}},
        {"preference.undesirable_weight", {0.375, kto}},
        {"lora.target_modules", {Json::array({"v_proj", "q_proj"})}},
        {"lora.rank_pattern", {{{"layers.1.*q_proj", 4}, {"a", 8}}}},
        {"lora.alpha_pattern", {{{"z", 0.5}, {"a", 8}}}},
        {"lora.layers_to_transform", {Json::array({3, 0})}},
        {"training.eval_steps", {7, {{"data", {{"val_size", 2}}}}}},
        {"training.evals_per_epoch", {2, {{"data", {{"val_size", 2}}}}}},
        {"training.saves_per_epoch", {2, {{"training", {{"save_steps", 0}}}}}},
        {"data.train_split", {"train[:20%]", {{"data", {{"train_file", "a"}}}}}},
        {"data.eval_split", {"test", {{"data", {{"train_file", "a"}}}}}},
        {"training.early_stopping_patience", {7, evaluated}},
        {"training.early_stopping_threshold",
         {0.5, {{"data", {{"val_size", 2}}}, {"training", {{"eval_steps", 2}, {"early_stopping_patience", 2}}}}}},
        {"training.load_best_model_at_end", {true, evaluated}},
        {"training.metric_for_best_model", {"token_accuracy"}},
        {"training.greater_is_better", {true}},
        {"training.eval_metric", {"exact_match", {{"data", {{"val_size", 2}}}}}},
        {"training.eval_answer_regex",
         {"#### (.+)", {{"data", {{"val_size", 2}}}, {"training", {{"eval_metric", "exact_match"}}}}}},
        {"training.eval_on_start", {true, {{"data", {{"val_size", 2}}}}}},
        {"training.warmup_ratio", {0.25, {{"training", {{"warmup_steps", 0}}}}}},
        {"training.lr_scheduler_kwargs",
         {{{"lr_end", 1e-5}, {"power", 2.0}}, {{"training", {{"lr_scheduler_type", "polynomial"}}}}}},
        {"lora.finetuning_type", {"full", {{"model", {{"load_in_4bit", false}}}}}},
        {"data.datasets", {Json::array({{{"path", "a"}, {"format", "text"}, {"weight", 2}}})}},
        {"distributed.pipeline_schedule", {"interleaved", {{"distributed", {{"pp_size", 2}}}}}},
        {"distributed.pipeline_micro_batches", {8, {{"distributed", {{"pp_size", 2}}}}}},
        {"distributed.nccl", {{{"SOCKET_IFNAME", "eth0"}, {"DEBUG", "WARN"}}}},
        {"data.chat_template_kwargs", {{{"enable_thinking", false}, {"tools", {{"a", Json::array({1, nullptr})}}}}}},
        {"model.device_map", {{{"model.layers.0-15", 0}, {"model", "cpu"}}}},
        {"model.rope_scaling", {{{"rope_type", "linear"}, {"factor", 2.0}}}},
        {"hardware.allocator", {{{"expandable_segments", true}, {"max_split_size_mb", 512}}}},
        {"model.load_in_8bit", {true, {{"model", {{"load_in_4bit", false}}}}}},
        {"model.special_tokens", {{{"eos_token", "<end>"}}}},
        {"model.precision", {{{"model.layers.0", "bf16"}, {"lm_head", "int8"}}}},
        {"model.max_memory", {{{"0", "12GiB"}, {"cpu", "64GiB"}}}},
        {"data.columns", {{{"instruction", "question"}}}},
        {"logging.metrics_port", {9090, {{"training", {{"report_to", Json::array({"prometheus"})}}}}}},
        {"data.eval_files", {{{"law", "law.jsonl"}}}},
        {"hardware.weight_mantissa_bits", {3, {{"hardware", {{"weight_cache", "on"}}}}}},
        {"hardware.device", {"cuda:3"}}};
    return examples;
}

/// What options of section grpo need.
Json companions_of(const std::string& name) {
    if (!name.starts_with("grpo.")) return Json::object();
    for (const char* loss : {"sapo", "vespo"})
        if (name.starts_with(cat("grpo.", loss, "_"))) return grpo_with({{"loss_type", loss}});
    return grpo_with();
}

/// A value that fits the schema and is not the default.
Json value_for(const Json& schema) {
    const Json initial = schema.at("default");
    if (schema.contains("enum")) return schema["enum"].at(0) == initial ? schema["enum"].at(1) : schema["enum"].at(0);
    const Json& kind = schema.contains("anyOf") ? schema["anyOf"].at(0) : schema;  // first of what fits
    const Json type = kind.at("type").is_array() ? kind["type"].at(0) : kind["type"];
    if (type == "boolean") return !initial.get<bool>();
    if (type == "integer") return initial.get<int64_t>() + 3;
    if (type == "number") return 0.375;  // within every range
    if (type == "array")
        return Json::array({kind.at("items").contains("enum") ? kind["items"]["enum"].at(0) : Json("some text")});
    return "some text";
}

Example example_for(const std::string& name, const Json& schema) {
    if (const auto special = special_examples().find(name); special != special_examples().end()) return special->second;
    return {value_for(schema), companions_of(name)};
}

/// Calls visit(full name, section, key, schema) for every option except reserved ones and aliases.
template <class Visit>
int for_each_option(const Visit& visit) {
    int count = 0;
    const Json sections = Json::parse(config::config_schema()).at("properties");
    for (const auto& [section, content] : sections.items()) {
        if (section == "$schema") continue;
        for (const auto& [key, schema] : content.at("properties").items()) {
            const bool is_alias = !schema.contains("default");
            if (is_alias || key == "resume_from_checkpoint") continue;
            SCOPED_TRACE(section + "." + key);
            visit(section + "." + key, section, key, schema);
            ++count;
        }
    }
    return count;
}

std::string as_flag_text(const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

TEST(OptionTable, EveryOptionIsReadFromAFileAndPrintedBack) {
    const int count = for_each_option([](const auto& name, const auto& section, const auto& key, const Json& schema) {
        const Example example = example_for(name, schema);
        const Json before = effective(load_text(example.companions.dump()));
        ASSERT_NE(before[section][key], example.value) << "the example must differ from the default";

        Json file = example.companions;
        file[section][key] = example.value;
        const config::LoadedConfig loaded = load_text(file.dump());
        const Json after = effective(loaded);
        EXPECT_EQ(after[section][key], example.value);
        EXPECT_TRUE(loaded.is_given(name));

        // Nothing else moved: no two options share a field.
        Json expected = before;
        expected[section][key] = example.value;
        EXPECT_EQ(after, expected);
        // And what is printed reads back to the same.
        EXPECT_EQ(effective(load_text(after.dump())), after);
    });
    EXPECT_GE(count, 47);
}

TEST(OptionTable, EveryOptionIsReadFromAFlag) {
    for_each_option([](const auto& name, const auto& section, const auto& key, const Json& schema) {
        const Example example = example_for(name, schema);
        std::string dashed = name;
        std::replace(dashed.begin(), dashed.end(), '_', '-');
        for (const std::string& spelling : {"--" + name, "--" + dashed}) {
            const auto companions = example.companions.dump();
            const auto separate = load_text(companions, {spelling, as_flag_text(example.value)});
            EXPECT_EQ(effective(separate)[section][key], example.value);
            EXPECT_TRUE(separate.is_given(name));
            const auto joined = load_text(companions, {spelling + "=" + as_flag_text(example.value)});
            EXPECT_EQ(effective(joined)[section][key], example.value);
        }
    });
}

TEST(OptionTable, EveryKeyIsUniqueSoFarAndWorksWithoutItsSection) {
    std::map<std::string, int> sections;  // that have the key: one of section grpo then needs its full name
    for_each_option([&](const auto&, const auto&, const auto& key, const Json&) { ++sections[key]; });
    for_each_option([&](const auto& name, const auto& section, const auto& key, const Json& schema) {
        if (section == "grpo" && sections.at(key) > 1) return;
        const Example example = example_for(name, schema);
        const auto loaded = load_text(example.companions.dump(), {"--" + key, as_flag_text(example.value)});
        EXPECT_EQ(effective(loaded)[section][key], example.value);
    });
}

TEST(OptionTable, AKeyThatSeveralSectionsHaveIsTheObjectivesOwn) {
    const std::string grpo = grpo_with().dump();
    const config::Config own = load_text(grpo, {"--beta", "0.1", "--temperature", "0.7", "--loss_type", "bnpo"}).config;
    EXPECT_EQ(own.grpo.beta, 0.1);
    EXPECT_EQ(own.grpo.temperature, 0.7);
    EXPECT_EQ(own.grpo.loss_type, spec::PolicyLossType::bnpo);
    const config::Config late =
        load_text("{}", {"--beta", "0.3", "--objective", "grpo", "--replay_rollouts", "r"}).config;
    EXPECT_EQ(late.grpo.beta, 0.3);
    const config::Config pairs = load_text("{}", {"--objective", "dpo", "--beta", "0.3"}).config;
    EXPECT_EQ(pairs.preference.beta, 0.3);
    EXPECT_EQ(pairs.grpo.beta, 0);
}

// Guards the binding of names to fields, which a round trip through the same table cannot see.
TEST(OptionTable, NamesReachTheirFields) {
    const config::Config config = load_text(R"({
      "model": {"path": "m", "load_in_4bit": false, "load_in_8bit": true, "precision": {"lm_head": "int8"}, "dtype": "float16", "adapter_name_or_path": "a", "max_seq_length": 11},
      "lora": {"finetuning_type": "lora", "r": 3, "lora_alpha": 5.5, "lora_dropout": 0.25, "use_rslora": true, "use_dora": true,
               "target_modules": ["o_proj"], "modules_to_save": ["embed_tokens"], "rank_pattern": {"b": 2, "a": 1},
               "alpha_pattern": {"c": 1.5}, "layers_to_transform": [4, 2]},
      "data": {"train_file": "t", "val_size": 0.125, "format": "messages", "template": "chatml", "train_on_prompt": true,
               "shuffle": false, "packing": true, "skip_bad_rows": true},
      "training": {"output_dir": "o", "per_device_train_batch_size": 12, "gradient_accumulation_steps": 13,
               "num_train_epochs": 1.5, "max_steps": 14, "learning_rate": 0.001, "lr_scheduler_type": "polynomial",
               "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-05}, "warmup_steps": 15, "weight_decay": 0.02,
               "max_grad_norm": 0.5, "optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6,
               "seed": 16, "gradient_checkpointing": "full", "deterministic": true, "eval_steps": 17, "save_steps": 18,
               "save_total_limit": 19, "logging_steps": 20},
      "hardware": {"device": "cpu", "weight_cache": "off", "offload_embedding": true, "cuda_graphs": false, "kernels": "library"},
      "logging": {"level": "debug", "metrics_file": "f", "profile": "p"}})")
                                      .config;
    EXPECT_EQ(config.model.path, "m");
    EXPECT_FALSE(config.model.load_in_4bit);
    EXPECT_TRUE(config.model.load_in_8bit);
    EXPECT_EQ(config.model.precision, (std::vector<std::pair<std::string, std::string>>{{"lm_head", "int8"}}));
    EXPECT_EQ(config.model.dtype, spec::DType::f16);
    EXPECT_EQ(config.model.adapter_name_or_path, "a");
    EXPECT_EQ(config.model.max_seq_length, 11);
    EXPECT_EQ(config.lora.finetuning_type, config::FinetuningType::lora);
    EXPECT_EQ(config.lora.r, 3);
    EXPECT_EQ(config.lora.lora_alpha, 5.5);
    EXPECT_EQ(config.lora.lora_dropout, 0.25);
    EXPECT_TRUE(config.lora.use_rslora);
    EXPECT_TRUE(config.lora.use_dora);
    EXPECT_TRUE(load_text(R"({"lora": {"vision": true}})").config.lora.vision);
    EXPECT_EQ(config.lora.target_modules, std::vector<std::string>{"o_proj"});
    EXPECT_EQ(config.lora.modules_to_save, std::vector<std::string>{"embed_tokens"});
    const std::vector<std::pair<std::string, int64_t>> ranks = {{"b", 2}, {"a", 1}};  // in the file's order
    EXPECT_EQ(config.lora.rank_pattern, ranks);
    const std::vector<std::pair<std::string, double>> alphas = {{"c", 1.5}};
    EXPECT_EQ(config.lora.alpha_pattern, alphas);
    EXPECT_EQ(config.lora.layers_to_transform, (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(config.data.train_file, "t");
    EXPECT_EQ(config.data.eval_file, std::nullopt);
    EXPECT_EQ(config.data.val_size, 0.125);
    EXPECT_EQ(config.data.format, config::DataFormat::messages);
    EXPECT_EQ(config.data.template_name, "chatml");
    EXPECT_TRUE(config.data.train_on_prompt);
    EXPECT_FALSE(config.data.shuffle);
    EXPECT_TRUE(config.data.packing);
    EXPECT_TRUE(config.data.skip_bad_rows);
    const config::TrainingOptions& training = config.training;
    EXPECT_EQ(training.output_dir, "o");
    EXPECT_EQ(training.per_device_train_batch_size, 12);
    EXPECT_EQ(training.gradient_accumulation_steps, 13);
    EXPECT_EQ(training.num_train_epochs, 1.5);
    EXPECT_EQ(training.max_steps, 14);
    EXPECT_EQ(training.learning_rate, 0.001);
    EXPECT_EQ(training.lr_scheduler_type, config::Schedule::polynomial);
    const std::vector<std::pair<std::string, std::string>> arguments = {{"power", "2.0"}, {"lr_end", "1e-05"}};
    EXPECT_EQ(training.lr_scheduler_kwargs, arguments);
    EXPECT_EQ(training.warmup_steps, 15);
    EXPECT_EQ(training.weight_decay, 0.02);
    EXPECT_EQ(training.max_grad_norm, 0.5);
    EXPECT_EQ(training.optim, config::Optimizer::adamw_torch);
    EXPECT_EQ(training.adam_beta1, 0.8);
    EXPECT_EQ(training.adam_beta2, 0.9);
    EXPECT_EQ(training.adam_epsilon, 1e-6);
    EXPECT_EQ(training.seed, 16);
    EXPECT_EQ(training.gradient_checkpointing, config::GradientCheckpointing::full);
    EXPECT_TRUE(training.deterministic);
    EXPECT_EQ(training.eval_steps, 17);
    EXPECT_EQ(training.save_steps, 18);
    EXPECT_EQ(training.save_total_limit, 19);
    EXPECT_EQ(training.logging_steps, 20);
    EXPECT_EQ(config.hardware.device, "cpu");
    EXPECT_EQ(config.logging.level, "debug");
    EXPECT_EQ(config.logging.metrics_file, "f");
}

TEST(OptionTable, EveryOptionSaysWhetherAResumedRunMayChangeIt) {
    config::Config config;
    config::OptionSet options;
    config::declare_options(options, config);
    for (const config::Option& option : options.options()) EXPECT_TRUE(option.resuming) << option.full_name();
    EXPECT_EQ(config::on_resume("lora.r"), config::OnResume::immutable);
    EXPECT_EQ(config::on_resume("data.packing"), config::OnResume::immutable);
    EXPECT_EQ(config::on_resume("training.learning_rate"), config::OnResume::logged);
    EXPECT_EQ(config::on_resume("data.cache_dir"), config::OnResume::mutable_);
    EXPECT_THROW(config::on_resume("data.workers"), CheckError);
}

// The file that interface.md shows, whose values are the defaults but for the paths.
TEST(OptionTable, DefaultsAreThePublishedOnes) {
    const std::string published = R"({
  "model":    {"load_in_4bit": true, "dtype": "bfloat16", "adapter_name_or_path": null, "max_seq_length": 2048},
  "lora":     {"finetuning_type": "lora", "r": 16, "lora_alpha": 16, "lora_dropout": 0.0, "use_rslora": false,
               "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
               "modules_to_save": [], "rank_pattern": {}, "alpha_pattern": {}, "layers_to_transform": null},
  "data":     {"eval_file": null, "val_size": 0, "format": "auto", "template": "auto",
               "train_on_prompt": false, "shuffle": true, "packing": false, "skip_bad_rows": false},
  "training": {"output_dir": "out/run1", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
               "num_train_epochs": 1, "max_steps": -1, "learning_rate": 2e-4, "lr_scheduler_type": "linear",
               "warmup_steps": 5, "warmup_ratio": 0.0, "weight_decay": 0.01, "max_grad_norm": 1.0,
               "optim": "adamw_8bit", "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "seed": 3407,
               "gradient_checkpointing": "auto", "deterministic": false, "eval_steps": 0, "save_steps": 500,
               "save_total_limit": 0, "logging_steps": 1, "resume_from_checkpoint": null},
  "hardware": {"device": "auto"},
  "logging":  {"level": "info", "metrics_file": "metrics.jsonl"}
})";
    EXPECT_EQ(effective(load_text(published)), effective(config::load_config({}, {})));
}

}  // namespace
}  // namespace unsloth::testing
