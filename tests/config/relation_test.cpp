// All relations of the option table: for each, a configuration that breaks it is refused and one that keeps it is read,
// and the JSON Schema agrees.
#include "unsloth/config/relation.h"

#include <algorithm>
#include <map>

#include "tests/config/schema_validator.h"
#include "unsloth/config/option_table.h"

namespace unsloth::testing {
namespace {

using config::Condition, config::Option, config::Relation, config::ValueSet;

/// The table, and what a file would say.
class Sample {
  public:
    Sample() { config::declare_options(options_, config_); }

    const config::OptionSet& options() const { return options_; }
    const Option& at(const std::string& name) { return options_.at(name); }

    /// A value of the set that is not the default, if there is one.
    std::optional<Json> value_in(const Option& option, const ValueSet& values) const {
        for (const Json& one : candidates(option, values))
            if (values.contains(one, option.default_value) && one != option.default_value) return one;
        if (values.contains(option.default_value, option.default_value)) return option.default_value;
        return std::nullopt;
    }
    std::optional<Json> value_outside(const Option& option, const ValueSet& values) const {
        if (!values.contains(option.default_value, option.default_value)) return option.default_value;
        for (const Json& one : candidates(option, values))
            if (!values.contains(one, option.default_value)) return one;
        return std::nullopt;
    }

    /// A file that says this, and what else these options need by their own relations but for `but`.
    Json completed(const std::map<std::string, Json>& given, const Relation* but) {
        std::map<std::string, Json> says = given;
        for (bool changed = true; changed;) {
            changed = false;
            for (const auto& [name, value] : std::map(says))
                for (const Relation& relation : at(name).relations)
                    if (&relation != but) changed |= repair(says, given, name, relation);
        }
        Json file = Json::object();
        for (const auto& [name, value] : says) {
            const auto dot = name.find('.');
            file[name.substr(0, dot)][name.substr(dot + 1)] = value;
        }
        return file;
    }

    bool holds(const std::map<std::string, Json>& says, const Condition& condition) {
        const Option& option = at(condition.option);
        const auto found = says.find(condition.option);
        return condition.values.contains(found == says.end() ? option.default_value : found->second,
                                         option.default_value);
    }

  private:
    std::vector<Json> candidates(const Option& option, const ValueSet& values) const {
        static const std::map<std::string, std::vector<Json>> special = {
            {"model.precision", {Json{{"model.layers.0", "bf16"}}}},
            {"data.datasets", {Json::array({Json{{"path", "p"}}})}},
            {"distill.teacher_device_map", {"sequential"}},
            {"training.learning_rate", {0, 1e-4}}};
        if (const auto found = special.find(option.full_name()); found != special.end()) return found->second;
        std::vector<Json> all(values.listed);
        switch (option.type) {
            case config::OptionType::boolean:
                all.insert(all.end(), {true, false});
                break;
            case config::OptionType::integer:
            case config::OptionType::number:
                for (const Json& one : {Json(2), Json(1), Json(0), Json(0.25)})
                    if (one.is_number_integer() || option.type == config::OptionType::number) all.push_back(one);
                std::erase_if(all, [&](const Json& one) {
                    const auto& range = option.range;
                    const double number = one.get<double>();
                    return number < range.minimum.value_or(number) || number > range.maximum.value_or(number) ||
                           (range.exclusive_minimum && number == range.minimum) ||
                           (range.exclusive_maximum && number == range.maximum);
                });
                break;
            case config::OptionType::text:
                all.push_back("x");
                break;
            case config::OptionType::choice:
                all.insert(all.end(), option.choices.begin(), option.choices.end());
                break;
            case config::OptionType::text_list:
                all.push_back(Json::array({option.choices.empty() ? "x" : option.choices.front()}));
                break;
            case config::OptionType::integer_list:
                all.push_back(Json::array({1}));
                break;
            case config::OptionType::json:
                all.push_back(Json::array({0, 1}));
                break;
            case config::OptionType::scalar_map:
                all.push_back({{"a", "b"}});
                break;
            default:
                all.push_back({{"a", 1}});
        }
        return all;
    }

    /// Sets other options as the relation asks, but those that are `given`. Whether it had to.
    bool repair(std::map<std::string, Json>& says, const std::map<std::string, Json>& given, const std::string& name,
                const Relation& relation) {
        const Option& option = at(name);
        if (!relation.when.contains(says.at(name), option.default_value)) return false;
        const bool forbids = relation.kind == Relation::Kind::not_with;
        if (relation.kind == Relation::Kind::unused_with) return false;
        const bool any = std::any_of(relation.others.begin(), relation.others.end(),
                                     [&](const Condition& one) { return holds(says, one); });
        if (any != forbids) return false;
        bool repaired = false;
        for (const Condition& one : relation.others) {
            if (forbids && !holds(says, one)) continue;
            const auto value =
                forbids ? value_outside(at(one.option), one.values) : value_in(at(one.option), one.values);
            if (!value) throw std::runtime_error(name + ": no value repairs " + one.option);
            if (given.contains(one.option)) continue;
            says[one.option] = *value;
            repaired = true;
            if (!forbids) break;
        }
        return repaired;
    }

    config::Config config_;
    config::OptionSet options_;
};

/// The message of the refusal; empty: it is read.
std::string refusal(const Json& file) {
    try {
        load_text(file.dump());
        return "";
    } catch (const Error& refused) {
        return refused.what();
    }
}

template <class Use>
int for_each_relation(Sample& sample, const Use& use) {
    int count = 0;
    for (const Option& option : sample.options().options())
        for (const Relation& relation : option.relations) {
            SCOPED_TRACE(option.full_name() + ": " + relation.in_words());
            use(option, relation);
            ++count;
        }
    return count;
}

TEST(Relations, ABrokenOneIsRefusedAndAKeptOneIsRead) {
    Sample sample;
    const int count = for_each_relation(sample, [&](const Option& option, const Relation& relation) {
        if (relation.kind == Relation::Kind::unused_with) return;
        const std::string name = option.full_name();
        const auto own = sample.value_in(option, relation.when);
        ASSERT_TRUE(own) << "no value for the relation";
        const bool forbids = relation.kind == Relation::Kind::not_with;
        for (const Condition& other : relation.others) {
            const Option& target = sample.at(other.option);
            std::map<std::string, Json> broken = {{name, *own}}, kept = {{name, *own}};
            const auto inside = sample.value_in(target, other.values);
            const auto outside = sample.value_outside(target, other.values);
            ASSERT_TRUE(inside && outside) << other.option;
            broken[other.option] = forbids ? *inside : *outside;
            kept[other.option] = forbids ? *outside : *inside;
            for (const Condition& rest : relation.others)
                if (!forbids && rest.option != other.option)
                    broken[rest.option] = *sample.value_outside(sample.at(rest.option), rest.values);

            const Json bad = sample.completed(broken, &relation), good = sample.completed(kept, nullptr);
            const std::string refused = refusal(bad);
            EXPECT_CONTAINS(refused, name);
            EXPECT_CONTAINS(refused, other.option);
            EXPECT_EQ(refusal(good), "") << good.dump();
            EXPECT_NE(violation(bad), "") << bad.dump();
            EXPECT_EQ(violation(good), "") << good.dump();
        }
    });
    EXPECT_GT(count, 50);
}

TEST(Relations, AnUnusedOptionIsNoted) {
    Sample sample;
    int noted = 0;
    for_each_relation(sample, [&](const Option& option, const Relation& relation) {
        if (relation.kind != Relation::Kind::unused_with) return;
        const Condition& other = relation.others.front();
        const auto own = sample.value_in(option, relation.when);
        const Json file = sample.completed(
            {{option.full_name(), *own}, {other.option, *sample.value_in(sample.at(other.option), other.values)}},
            nullptr);
        const auto notes = load_text(file.dump()).notes;
        EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [&](const std::string& note) {
            return note.starts_with(option.full_name() + " has no effect with");
        })) << file.dump();
        ++noted;
    });
    EXPECT_GT(noted, 5);
}

TEST(Relations, AConditionalDefaultIsForOptionsThatNobodyGave) {
    Sample sample;
    int count = 0;
    for (const Option& option : sample.options().options())
        for (const config::ConditionalDefault& other : option.conditional_defaults) {
            const auto& condition = other.condition;
            const Json file = sample.completed(
                {{condition.option, *sample.value_in(sample.at(condition.option), condition.values)}}, nullptr);
            const Json whole = Json::parse(config::config_to_json(load_text(file.dump()).config));
            EXPECT_EQ(whole.at(option.section).at(option.key), other.value) << file.dump();
            EXPECT_NE(option.default_value, other.value);
            ++count;
        }
    EXPECT_EQ(count, 4);
}

TEST(Relations, AliasesAndSynonymsCountInTheSchemaToo) {
    const auto agree = [](const char* text, bool accepted) {
        EXPECT_EQ(refusal(Json::parse(text)).empty(), accepted) << text;
        EXPECT_EQ(violation(Json::parse(text)).empty(), accepted) << text;
    };
    agree(R"({"model": {"fp16": true}, "distributed": {"cp_size": 2}})", false);
    agree(R"({"training": {"fp16": true}, "distributed": {"cp_size": 2}})", false);
    agree(R"({"model": {"dtype": "half"}, "distributed": {"cp_size": 2}})", false);
    agree(R"({"model": {"dtype": "bf16"}, "distributed": {"cp_size": 2}})", true);
    agree(R"({"training": {"packing": true, "max_tokens_per_batch": 9}})", false);
    agree(R"({"training": {"packing": null, "max_tokens_per_batch": 9}})", true);
    agree(R"({"lora": {"finetuning_type": "full", "target_modules": "all-linear"}})", true);
    agree(R"({"hardware": {"weight_mantissa_bits": 3, "weight_cache": true}})", true);
    agree(R"({"training": {"warmup_ratio": 0.1, "warmup_steps": 0}})", true);
    agree(R"({"training": {"warmup_ratio": 0.1, "warmup_steps": 5}})", false);
    agree(R"({"training": {"warmup_ratio": 0.0, "warmup_steps": 5}})", true);
}

TEST(Relations, MessagesSayWhatAndWhatNext) {
    EXPECT_CONTAINS(flag_error({"--preference.beta", "0.5"}),
                    "preference.beta only applies to training.objective dpo, orpo or kto\n"
                    "  Remove it, or set training.objective to dpo, orpo or kto.");
    EXPECT_CONTAINS(flag_error({"--eval_steps", "10"}),
                    "training.eval_steps needs data.eval_file, data.eval_files, data.eval_split or data.val_size\n"
                    "  Set data.eval_file, data.eval_files, data.eval_split or data.val_size, or remove "
                    "training.eval_steps.");
    EXPECT_CONTAINS(flag_error({"--pipeline_micro_batches", "2"}),
                    "distributed.pipeline_micro_batches only applies with distributed.pp_size");
    EXPECT_CONTAINS(flag_error({"--compute_dtype", "fp8", "--finetuning_type", "full"}),
                    "model.compute_dtype fp8_backward cannot be combined with lora.finetuning_type full");
}

TEST(Relations, GiveErrorsTheirIds) {
    flag_error({"--preference.beta", "0.5"}, "option.no-effect");
    flag_error({"--objective", "distill"}, "option.missing");
    flag_error({"--warmup_ratio", "0.1", "--warmup_steps", "5"}, "option.conflict");
    // Ids of their own.
    flag_error({"--eval_steps", "10"}, "option.no-evaluation");
    flag_error({"--compute_dtype", "fp8", "--finetuning_type", "full"}, "option.unsupported");
    flag_error({"--cp_size", "2", "--dtype", "float16"}, "parallel.unsupported");
}

}  // namespace
}  // namespace unsloth::testing
