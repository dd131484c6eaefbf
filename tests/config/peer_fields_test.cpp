// Fields of transformers, TRL and PEFT: each of a pinned list (tests/golden/options) is taken, mapped or refused by
// name.
#include "unsloth/config/peer_fields.h"
#include "common/files.h"

#include <set>

#include "tests/config/support.h"
#include "unsloth/config/option_table.h"

namespace unsloth::testing {
namespace {

const Json& pinned_classes() {
    static const Json classes = [] {
        std::ifstream file(test::golden("options/fields.json"));
        return Json::parse(file);
    }();
    return classes;
}

/// What is said about a configuration of this one value; "" when it is taken.
std::string refusal_of(const std::string& section, const std::string& key, const Json& value) {
    const Json file = {{section, {{key, value}}}};
    try {
        load_text(file.dump());
        return "";
    } catch (const Error& refused) {
        return refused.what();
    }
}

TEST(PeerFields, EveryFieldOfThePinnedListIsKnownByName) {
    std::size_t fields = 0;
    for (const Json& one : pinned_classes()) {
        for (const Json& field : one.at("fields")) {
            const std::string key = field.at("name"), section = one.at("section");
            for (const Json& value : {Json{{"odd", {"value"}}}, Json("odd"), Json(-7), Json(true)}) {
                const std::string refusal = refusal_of(section, key, value);
                if (refusal.empty()) continue;
                EXPECT_CONTAINS(refusal, section + "." + key);
                EXPECT_FALSE(contains(refusal, "unknown")) << refusal;
                EXPECT_FALSE(refusal.ends_with(": ")) << refusal;
            }
            ++fields;
        }
    }
    EXPECT_GT(fields, 500u);
}

// So that what these programs print can be carried over: nobody chose these values.
TEST(PeerFields, AConfigurationOfAllDefaultsIsTaken) {
    for (const Json& one : pinned_classes()) {
        SCOPED_TRACE(one.at("class").get<std::string>() + " of " + one.at("packages").dump());
        Json members = Json::object();
        for (const Json& field : one.at("fields"))
            if (field.contains("default")) members[field.at("name").get<std::string>()] = field.at("default");
        // Rows to evaluate on, as one who sets eval_steps has them.
        const Json file = {{one.at("section").get<std::string>(), members}, {"data", {{"eval_file", "e"}}}};
        try {
            load_text(file.dump());
        } catch (const Error& refused) {
            ADD_FAILURE() << refused.what();
        }
    }
}

TEST(PeerFields, NoneStandsInTheWayOfAnOption) {
    config::Config config;
    config::OptionSet options;
    config::declare_options(options, config);
    std::set<std::string> seen;
    for (const config::PeerField& field : config::peer_fields()) {
        EXPECT_TRUE(seen.insert(field.key).second) << field.key << " stands twice";
        EXPECT_FALSE(options.find(field.section + "." + field.key))
            << field.key << " is an option now: take it out of the table";
        if (!field.option.empty()) {
            EXPECT_TRUE(options.find(field.option)) << field.option;
        }
        EXPECT_TRUE(field.takes_any || !field.option.empty() || !field.refusal.empty()) << field.key;
        EXPECT_FALSE(field.takes_any && field.note.empty()) << field.key;
    }
}

std::string notes_of(const std::string& content, const std::vector<std::string>& flags = {}) {
    std::string all;
    for (const std::string& note : load_text(content, flags).notes) all += note + "\n";
    return all;
}

TEST(PeerFields, WhatHasNoEffectIsTakenWithAWord) {
    EXPECT_CONTAINS(notes_of(R"({"training": {"run_name": "first"}})"), "training.run_name has no effect");
    EXPECT_CONTAINS(notes_of(R"({"training": {"remove_unused_columns": true}})"), "columns that are not known");
    EXPECT_CONTAINS(notes_of(R"({"training": {"dataloader_num_workers": 4}})"), "a thread prepares batches");
    EXPECT_CONTAINS(notes_of(R"({"training": {"ddp_backend": "nccl"}})"), "ranks are the launcher's");
    EXPECT_CONTAINS(notes_of(R"({"model": {"attn_implementation": "flash_attention_2"}})"), "kernels of its own");
    EXPECT_CONTAINS(notes_of(R"({"training": {"tf32": true}})"), "never made in TF32");
    EXPECT_CONTAINS(notes_of(R"({"training": {"hub_strategy": "every_save"}})"), "uploads once, after the run");
    for (const char* quiet : {R"({"lora": {"bias": "none", "task_type": "CAUSAL_LM"}})",
                              R"({"training": {"push_to_hub": false, "neftune_noise_alpha": null}})",
                              R"({"training": {"ddp_find_unused_parameters": false}})"})
        EXPECT_EQ(notes_of(quiet), "");
}

TEST(PeerFields, WhatHasAnEquivalentIsMapped) {
    const auto of = [](const std::string& content) { return load_text(content).config; };
    EXPECT_EQ(of(R"({"training": {"save_strategy": "no"}})").training.save_steps, 0);
    EXPECT_CONTAINS(notes_of(R"({"training": {"save_strategy": "no"}})"),
                    "training.save_strategy no is taken as training.save_steps 0");
    EXPECT_CONTAINS(file_error(R"({"training": {"save_strategy": "no", "save_steps": 7}})"),
                    "training.save_strategy and training.save_steps contradict each other");
    EXPECT_EQ(of(R"({"training": {"save_strategy": "steps", "save_steps": 7}})").training.save_steps, 7);
    EXPECT_EQ(of(R"({"training": {"eval_strategy": "no"}})").training.eval_steps, 0);
    EXPECT_EQ(of(R"({"training": {"save_strategy": "epoch"}})").training.saves_per_epoch, 1);
    EXPECT_EQ(of(R"({"data": {"val_size": 2}, "training": {"eval_strategy": "epoch"}})").training.evals_per_epoch, 1);
    EXPECT_CONTAINS(notes_of(R"({"training": {"save_strategy": "epoch"}})"),
                    "training.save_strategy epoch is taken as training.saves_per_epoch 1");
    EXPECT_EQ(of(R"({"training": {"use_cpu": true}})").hardware.device, "cpu");
    EXPECT_EQ(of(R"({"training": {"full_determinism": true}})").training.deterministic, true);
    EXPECT_EQ(of(R"({"training": {"chat_template_path": "t.jinja"}})").data.template_name, "t.jinja");
    EXPECT_EQ(of(R"({"training": {"completion_only_loss": false}})").data.train_on_prompt, true);
    EXPECT_EQ(of(R"({"training": {"train_sampling_strategy": "sequential"}})").data.shuffle, false);
    EXPECT_EQ(of(R"({"training": {"log_level": "error"}})").logging.level, "error");
    EXPECT_TRUE(load_text(R"({"training": {"save_strategy": "no"}})").is_given("training.save_steps"));
}

TEST(PeerFields, OtherNamesAndValuesOfOptions) {
    const auto of = [](const std::string& content) { return load_text(content).config; };
    EXPECT_TRUE(of(R"({"training": {"packing": true}})").data.packing);
    EXPECT_CONTAINS(notes_of(R"({"training": {"packing": true}})"), "training.packing is taken as data.packing");
    EXPECT_EQ(of(R"({"training": {"max_length": 512}})").model.max_seq_length, 512);
    EXPECT_EQ(of(R"({"training": {"max_seq_length": 512}})").model.max_seq_length, 512);
    EXPECT_EQ(of(R"({"training": {"max_length": null}})").model.max_seq_length, 0);  // the model's own limit
    EXPECT_EQ(config::load_config({}, {"--max_seq_length", "null"}).config.model.max_seq_length, 0);
    EXPECT_EQ(of(R"({"data": {"template": "llama3"}})").data.template_name, "llama-3");
    EXPECT_EQ(of(R"({"data": {"chat_template_jinja": "{{ messages }}"}})").data.template_name, "{{ messages }}");
    EXPECT_EQ(of(R"({"model": {"dtype": "bf16"}})").model.dtype, spec::DType::bf16);
    EXPECT_EQ(of(R"({"model": {"torch_dtype": "float16"}})").model.dtype, spec::DType::f16);
    EXPECT_EQ(config::load_config({}, {"--dtype", "fp32"}).config.model.dtype, spec::DType::f32);
    EXPECT_EQ(of(R"({"training": {"optim": "adamw_torch_fused"}})").training.optim, config::Optimizer::adamw_torch);
    EXPECT_EQ(of(R"({"training": {"optim": "paged_adamw_8bit"}})").training.optim, config::Optimizer::adamw_8bit);
    EXPECT_CONTAINS(notes_of(R"({"training": {"optim": "paged_adamw_8bit"}})"), "its states stay on the device");
    EXPECT_EQ(of(R"({"lora": {"target_modules": "all-linear"}})").lora.target_modules,
              config::LoraOptions().target_modules);
    EXPECT_EQ(config::load_config({}, {"--target_modules", "all-linear"}).config.lora.target_modules,
              config::LoraOptions().target_modules);
}

TEST(PeerFields, WhatWouldChangeTheResultIsRefusedWithTheReason) {
    EXPECT_CONTAINS(file_error(R"({"training": {"report_to": "mlflow"}})"), "training.report_to");
    EXPECT_CONTAINS(file_error(R"({"training": {"save_strategy": "best"}})"), "training.save_steps");
    EXPECT_CONTAINS(file_error(R"({"training": {"eval_strategy": "odd"}})"), "training.eval_steps");
    EXPECT_CONTAINS(file_error(R"({"training": {"label_smoothing_factor": 0.1}})"), "plain cross-entropy");
    EXPECT_CONTAINS(file_error(R"({"training": {"truncation_mode": "keep_end"}})"), "preference.truncation_mode");
    EXPECT_CONTAINS(file_error(R"({"training": {"dataset_text_field": "content"}})"), "data.columns");
    EXPECT_CONTAINS(file_error(R"({"lora": {"bias": "all"}})"), "lora.bias: all is refused: biases are not trained");
    EXPECT_CONTAINS(file_error(R"({"lora": {"task_type": "SEQ_CLS"}})"), "causal language models");
    EXPECT_CONTAINS(file_error(R"({"lora": {"init_lora_weights": "pissa"}})"), "B is 0");
    EXPECT_CONTAINS(file_error(R"({"run_name": "first"})"), "Did you mean training.run_name?");
}

TEST(PeerFields, AreFlagsToo) {
    EXPECT_EQ(config::load_config({}, {"--save_strategy", "no"}).config.training.save_steps, 0);
    EXPECT_EQ(config::load_config({}, {"--training.save-strategy=no"}).config.training.save_steps, 0);
    const config::LoadedConfig loaded =
        config::load_config({}, {"--run_name", "first", "--group_by_length", "--push_to_hub", "False",
                                 "--dataloader_num_workers", "4", "--r", "8"});
    EXPECT_EQ(loaded.config.lora.r, 8);
    ASSERT_EQ(loaded.notes.size(), 3u);
    EXPECT_CONTAINS(loaded.notes[0], "--run_name has no effect");
    EXPECT_CONTAINS(flag_error({"--bias", "lora_only"}), "--bias: lora_only is refused");
}

}  // namespace
}  // namespace unsloth::testing
