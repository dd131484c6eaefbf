// The JSON Schema against the reader: what one accepts the other does, checked by a small validator of the keywords
// that the schema uses (an unknown keyword fails the test).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "common/files.h"
#include "tests/config/support.h"

namespace unsloth::testing {
namespace {

class Validator {
  public:
    /// The first violation, or "".
    std::string check(const Json& schema, const Json& value, const std::string& where = "") {
        static const std::set<std::string> annotations = {"$schema", "title", "description", "default"};
        for (const auto& [keyword, argument] : schema.items()) {
            if (annotations.count(keyword) != 0) continue;
            const std::string problem = check_keyword(schema, keyword, argument, value, where);
            if (!problem.empty()) return problem;
        }
        return "";
    }

  private:
    static bool is_type(const std::string& type, const Json& value) {
        if (type == "null") return value.is_null();
        if (type == "boolean") return value.is_boolean();
        if (type == "string") return value.is_string();
        if (type == "array") return value.is_array();
        if (type == "object") return value.is_object();
        if (type == "number") return value.is_number();
        if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
        throw std::runtime_error("unknown type " + type);
    }

    static bool has_type(const Json& types, const Json& value) {
        if (types.is_string()) return is_type(types, value);
        return std::any_of(types.begin(), types.end(), [&](const Json& type) { return is_type(type, value); });
    }

    static bool within(const std::string& keyword, double bound, double number) {
        if (keyword == "minimum") return number >= bound;
        if (keyword == "maximum") return number <= bound;
        if (keyword == "exclusiveMinimum") return number > bound;
        return number < bound;
    }

    std::string check_keyword(const Json& schema, const std::string& keyword, const Json& argument, const Json& value,
                              const std::string& where) {
        static const std::set<std::string> bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
        bool good = true;
        if (keyword == "type") {
            good = has_type(argument, value);
        } else if (keyword == "enum") {
            good = std::find(argument.begin(), argument.end(), value) != argument.end();
        } else if (bounds.count(keyword) != 0) {
            good = !value.is_number() || within(keyword, argument.get<double>(), value.get<double>());
        } else if (keyword == "anyOf") {
            good = std::any_of(argument.begin(), argument.end(),
                               [&](const Json& one) { return check(one, value, where).empty(); });
        } else if (keyword == "minLength") {
            good = !value.is_string() || value.get<std::string>().size() >= argument.get<std::size_t>();
        } else if (keyword == "pattern") {
            good = !value.is_string() ||
                   std::regex_search(value.get<std::string>(), std::regex(argument.get<std::string>()));
        } else if (keyword == "items") {
            return check_children(argument, value, where, value.is_array());
        } else if (keyword == "properties" || keyword == "additionalProperties") {
            return keyword == "properties" ? check_properties(schema, value, where) : "";
        } else {
            throw std::runtime_error("the validator does not know " + keyword);
        }
        if (keyword == "type" && good && schema.contains("additionalProperties") && !schema.contains("properties"))
            return check_children(schema["additionalProperties"], value, where, value.is_object());
        return good ? "" : where + ": " + keyword + " " + argument.dump() + " against " + value.dump();
    }

    std::string check_children(const Json& schema, const Json& value, const std::string& where, bool applies) {
        if (!applies) return "";
        for (const auto& child : value)
            if (const auto problem = check(schema, child, where + "[]"); !problem.empty()) return problem;
        return "";
    }

    std::string check_properties(const Json& schema, const Json& value, const std::string& where) {
        if (!value.is_object()) return "";
        EXPECT_EQ(schema.at("additionalProperties"), false);
        for (const auto& [key, child] : value.items()) {
            if (!schema["properties"].contains(key)) return where + ": unknown " + key;
            if (const auto problem = check(schema["properties"][key], child, where + "." + key); !problem.empty())
                return problem;
        }
        return "";
    }
};

std::string violation(const Json& document) {
    static const Json schema = Json::parse(config::config_schema());
    return Validator().check(schema, document);
}

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
        R"({"lora": {"target_modules": "all-linear"}})",
        R"({"training": {"report_to": "none", "save_strategy": "no", "max_length": null}})",
        R"({"training": {"run_name": {"any": 1}, "resume_from_checkpoint": true}})",
        R"({"training": {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 0.5}}})",
        // refused
        R"([])", R"({"lora": []})", R"({"loar": {}})", R"({"lora": {"rank": 4}})", R"({"lora": {"r": 0}})",
        R"({"lora": {"r": "8"}})", R"({"lora": {"r": 8.5}})", R"({"lora": {"r": null}})", R"({"lora": {"r": true}})",
        R"({"lora": {"lora_dropout": 1}})", R"({"lora": {"lora_alpha": 0}})", R"({"lora": {"lora_alpha": "1"}})",
        R"({"lora": {"target_modules": ["x"]}})", R"({"lora": {"target_modules": "q_proj"}})",
        R"({"lora": {"rank_pattern": {"a": 0}}})", R"({"lora": {"rank_pattern": {"a": 1.5}}})",
        R"({"lora": {"alpha_pattern": {"a": 0}}})", R"({"lora": {"layers_to_transform": [-1]}})",
        R"({"training": {"gradient_checkpointing": "maybe"}})", R"({"training": {"gradient_checkpointing": 1}})",
        R"({"training": {"learning_rate": "fast"}})", R"({"training": {"learning_rate": -1}})",
        R"({"training": {"lr_scheduler_kwargs": {"num_cycles": []}}})", R"({"data": {"eval_file": ""}})",
        R"({"data": {"eval_file": 3}})", R"({"model": {"bf16": "true"}})", R"({"model": {"max_length": 0}})",
        R"({"lora": {"bias": "all"}})", R"({"training": {"save_strategy": "epoch"}})",
        R"({"logging": {"level": "loud"}})", R"({"data": {"shuffle": "true"}})"};
    int accepted = 0;
    for (const auto& text : documents) {
        const std::string problem = violation(Json::parse(text));
        EXPECT_EQ(problem.empty(), reader_accepts(text)) << text << "\n" << problem;
        accepted += problem.empty() ? 1 : 0;
    }
    EXPECT_EQ(accepted, 21);
}

}  // namespace
}  // namespace unsloth::testing
