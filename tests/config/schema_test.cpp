// The JSON Schema against the reader: what one accepts the other does.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "common/files.h"
#include "tests/config/schema_validator.h"

namespace unsloth::testing {
namespace {

bool reader_accepts(const std::string& text) {
    try {
        load_text(text);
        return true;
    } catch (const Error&) {
        return false;
    }
}

TEST(Schema, IsADraft2020SchemaWithDescriptionsAndDefaultsEverywhere) {
    const Json schema = Json::parse(config::config_schema());
    EXPECT_EQ(schema.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
    EXPECT_EQ(schema.at("additionalProperties"), false);
    for (const auto& [section, content] : schema.at("properties").items()) {
        EXPECT_FALSE(content.at("description").get<std::string>().empty()) << section;
        if (section == "$schema") continue;
        EXPECT_EQ(content.at("additionalProperties"), false) << section;
        for (const auto& [key, option] : content.at("properties").items()) {
            EXPECT_FALSE(option.at("description").get<std::string>().empty()) << key;
            if (!option.contains("default")) continue;  // another name of an option
            EXPECT_EQ(Validator().check(option, option["default"]), "") << key;
        }
    }
}

TEST(Schema, TheEffectiveConfigurationFits) {
    EXPECT_EQ(violation(Json::parse(config::config_to_json(config::Config{}))), "");
    const auto full =
        config::load_config({}, {"--finetuning_type", "full", "--path", "m", "--train_file", "t", "--val_size", "0.1",
                                 "--layers_to_transform", "null", "--learning_rate", "1e-5"});
    EXPECT_EQ(violation(Json::parse(config::config_to_json(full.config))), "");
}

TEST(Schema, AgreesWithTheReaderOnSingleOptions) {
    const std::vector<std::string> documents = {
        // accepted
        R"({"$schema": "x"})", R"({"lora": {"r": 8.0}})", R"({"training": {"gradient_checkpointing": true}})",
        R"({"training": {"gradient_checkpointing": "unsloth"}})", R"({"training": {"learning_rate": "2e-4"}})",
        R"({"training": {"learning_rate": "auto"}})", R"({"training": {"learning_rate": " .5 "}})",
        R"({"model": {"bf16": true}})", R"({"training": {"fp16": true}})", R"({"model": {"max_length": 5}})",
        R"({"lora": {"rank_pattern": {"a": 4}}})", R"({"lora": {"alpha_pattern": {"a": 0.5}}})",
        R"({"lora": {"layers_to_transform": [1, 2]}})", R"({"logging": {"log_level": "debug"}})",
        R"({"data": {"eval_file": "e"}})", R"({"data": {"template": ""}})", R"({"model": {"dtype": "bf16"}})",
        R"({"lora": {"target_modules": "all-linear"}})", R"({"lora": {"r": "auto"}})",
        R"({"training": {"report_to": "none", "save_strategy": "no", "max_length": null}})",
        R"({"training": {"run_name": {"any": 1}, "resume_from_checkpoint": true}})",
        R"({"training": {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 0.5}}})",
        // refused
        R"([])", R"({"lora": []})", R"({"loar": {}})", R"({"lora": {"rank": 4}})", R"({"lora": {"r": 0}})",
        R"({"lora": {"r": "8"}})", R"({"lora": {"r": "automatic"}})", R"({"lora": {"r": 8.5}})",
        R"({"lora": {"r": null}})", R"({"lora": {"r": true}})", R"({"lora": {"lora_dropout": 1}})",
        R"({"lora": {"lora_alpha": 0}})", R"({"lora": {"lora_alpha": "1"}})", R"({"lora": {"target_modules": ["x"]}})",
        R"({"lora": {"target_modules": "q_proj"}})", R"({"lora": {"rank_pattern": {"a": 0}}})",
        R"({"lora": {"rank_pattern": {"a": 1.5}}})", R"({"lora": {"alpha_pattern": {"a": 0}}})",
        R"({"lora": {"layers_to_transform": [-1]}})", R"({"training": {"gradient_checkpointing": "maybe"}})",
        R"({"training": {"gradient_checkpointing": 1}})", R"({"training": {"learning_rate": "fast"}})",
        R"({"training": {"learning_rate": -1}})", R"({"training": {"lr_scheduler_kwargs": {"num_cycles": []}}})",
        R"({"data": {"eval_file": ""}})", R"({"data": {"eval_file": 3}})", R"({"model": {"bf16": "true"}})",
        R"({"model": {"max_length": 0}})", R"({"lora": {"bias": "all"}})",
        R"({"training": {"save_strategy": "epoch"}})", R"({"logging": {"level": "loud"}})",
        R"({"data": {"shuffle": "true"}})"};
    int accepted = 0;
    for (const auto& text : documents) {
        const std::string problem = violation(Json::parse(text));
        EXPECT_EQ(problem.empty(), reader_accepts(text)) << text << "\n" << problem;
        accepted += problem.empty() ? 1 : 0;
    }
    EXPECT_EQ(accepted, 24);
}

}  // namespace
}  // namespace unsloth::testing
