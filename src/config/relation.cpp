#include "unsloth/config/relation.h"

#include <algorithm>

#include "unsloth/config/errors.h"
#include "unsloth/config/option_set.h"
#include "unsloth/config/peer_fields.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

std::string value_text(const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string alternatives(const std::vector<std::string>& words) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i)
        text += cat(i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", words[i]);
    return text;
}

std::string values_text(const ValueSet& values) {
    std::vector<std::string> words;
    for (const Json& value : values.listed) words.push_back(value_text(value));
    return cat(values.kind == ValueSet::Kind::except ? "other than " : "", alternatives(words));
}

/// "lora.r" of a configuration, "--n" of a command.
std::string shown_name(const std::string& option) {
    return option.find('.') == std::string::npos ? "--" + option : option;
}

/// "training.objective dpo, orpo or kto", "data.val_size".
std::string condition_text(const Condition& condition) {
    const std::string name = shown_name(condition.option);
    return condition.values.kind == ValueSet::Kind::set ? name : cat(name, " ", values_text(condition.values));
}

std::string conditions_text(const std::vector<Condition>& conditions) {
    std::vector<std::string> words;
    for (const Condition& condition : conditions) words.push_back(condition_text(condition));
    return alternatives(words);
}

/// "Set training.objective to dpo, orpo or kto", without its first word.
std::string remedies_text(const std::vector<Condition>& conditions) {
    std::vector<std::string> words;
    for (const Condition& condition : conditions)
        words.push_back(cat(shown_name(condition.option), condition.values.kind == ValueSet::Kind::set ? "" : " to ",
                            values_text(condition.values)));
    return alternatives(words);
}

const Option& option_named(const OptionSet& options, const std::string& name) {
    const auto found = options.find(name);
    UNSLOTH_CHECK(found && found->alias == nullptr, "a relation names ", name, ", which is no option");
    return *found->option;
}

bool holds(const OptionSet& options, const Condition& condition) {
    const Option& option = option_named(options, condition.option);
    return condition.values.contains(option.get(), option.default_value);
}

bool applies(const Option& option, const Relation& relation, const std::set<std::string>& given) {
    const Json value = option.get();
    const bool written = value != option.default_value || given.count(option.full_name()) != 0;
    return written && relation.when.contains(value, option.default_value);
}

/// The option, with its value where that is what matters.
std::string subject(const Option& option, const Relation& relation) {
    const std::string name = shown_name(option.full_name());
    const bool says = relation.when.kind != ValueSet::Kind::set || option.type == OptionType::choice;
    return says ? cat(name, " ", value_text(option.get())) : name;
}

Error broken(const Option& option, const Relation& relation, const Condition* conflict, const Json& other_value) {
    const std::string others = conditions_text(relation.others), remedies = remedies_text(relation.others);
    const bool by_value = relation.others.front().values.kind != ValueSet::Kind::set;
    const std::string name = shown_name(option.full_name());
    std::string message, advice;
    switch (relation.kind) {
        case Relation::Kind::only_with:
            message = cat(name, by_value ? " only applies to " : " only applies with ", others);
            advice = cat("Remove it, or set ", remedies, ".");
            break;
        case Relation::Kind::needs:
            message = cat(subject(option, relation), " needs ", others);
            advice = cat("Set ", remedies, ", or remove ", name, ".");
            break;
        default:
            message = cat(subject(option, relation), " cannot be combined with ", shown_name(conflict->option),
                          conflict->values.kind == ValueSet::Kind::set ? "" : " " + value_text(other_value));
            advice = "Remove or change one of them.";
    }
    if (!relation.reason.empty()) message += ": " + relation.reason;
    return Error(relation.error_id(), message, relation.advice.empty() ? advice : relation.advice);
}

/// Throws for the first relation that the option breaks.
void check_option(const OptionSet& options, const Option& option, const Relation& relation) {
    const auto held = std::find_if(relation.others.begin(), relation.others.end(),
                                   [&](const Condition& condition) { return holds(options, condition); });
    const bool any = held != relation.others.end();
    const bool forbids = relation.kind == Relation::Kind::not_with;
    if (any != forbids) return;
    throw broken(option, relation, any ? &*held : nullptr, any ? option_named(options, held->option).get() : Json());
}

// The schema.

ValueSet complement(const ValueSet& values) {
    using Kind = ValueSet::Kind;
    UNSLOTH_CHECK(values.kind != Kind::set, "all values but the default have no list");
    return {values.kind == Kind::among ? Kind::except : Kind::among, values.listed};
}

/// That the object has this member, and the member fits.
Json member_schema(const std::string& section, const std::string& key, const Json& value) {
    const Json inner = {{"type", "object"}, {"required", Json::array({key})}, {"properties", {{key, value}}}};
    return {{"required", Json::array({section})}, {"properties", {{section, inner}}}};
}

/// The values as a file may write them. `by_alias`: null is "not set" there.
Json written_schema(const Option& option, const ValueSet& values, bool by_alias) {
    const bool negated = values.kind != ValueSet::Kind::among;
    Json written = values.kind == ValueSet::Kind::set ? Json::array({option.default_value}) : Json(values.listed);
    const Json meant = written;
    for (const Synonym& synonym : option.synonyms)
        if (std::find(meant.begin(), meant.end(), synonym.meant) != meant.end()) written.push_back(synonym.written);
    if (negated && by_alias) written.push_back(nullptr);
    const Json listed = {{"enum", written}};
    return negated ? Json{{"not", listed}} : listed;
}

/// That a file gives the option one of the values, by any of its names.
Json has_schema(const Option& option, const ValueSet& values, bool by_peers) {
    Json ways = Json::array({member_schema(option.section, option.key, written_schema(option, values, false))});
    for (const Alias& alias : option.aliases) {
        if (!alias.when_true) {
            ways.push_back(member_schema(alias.section, alias.key, written_schema(option, values, true)));
        } else if (values.contains(*alias.when_true, option.default_value)) {
            ways.push_back(member_schema(alias.section, alias.key, {{"enum", Json::array({true})}}));
        }
    }
    if (by_peers)
        for (const PeerField& field : peer_fields())
            if (field.option == option.full_name())
                ways.push_back(member_schema(field.section, field.key, Json::object()));
    return ways.size() == 1 ? ways.front() : Json{{"anyOf", ways}};
}

Json holds_schema(const Option& option, const ValueSet& values) {
    if (!values.contains(option.default_value, option.default_value)) return has_schema(option, values, true);
    return {{"not", has_schema(option, complement(values), false)}};
}

Json relation_schema(const OptionSet& options, const Option& option, const Relation& relation) {
    Json ways = Json::array();
    const bool forbids = relation.kind == Relation::Kind::not_with;
    for (const Condition& condition : relation.others) {
        const Option& other = option_named(options, condition.option);
        ways.push_back(forbids ? has_schema(other, condition.values, false) : holds_schema(other, condition.values));
    }
    const Json any = ways.size() == 1 ? ways.front() : Json{{"anyOf", ways}};
    return {{"if", has_schema(option, relation.when, false)}, {"then", forbids ? Json{{"not", any}} : any}};
}

}  // namespace

bool ValueSet::contains(const Json& value, const Json& default_value) const {
    if (kind == Kind::set) return value != default_value;
    const bool found = std::find(listed.begin(), listed.end(), value) != listed.end();
    return found == (kind == Kind::among);
}

ErrorId Relation::error_id() const {
    if (id) return *id;
    switch (kind) {
        case Kind::only_with:
            return "option.no-effect";
        case Kind::needs:
            return "option.missing";
        default:
            return "option.conflict";
    }
}

std::string Relation::in_words() const {
    const std::string subject = when.kind == ValueSet::Kind::set ? "" : values_text(when) + ": ";
    const auto sentence = [&](const char* first, const char* within) {
        return cat(subject, subject.empty() ? first : within, " ", conditions_text(others), ".");
    };
    switch (kind) {
        case Kind::only_with:
            return sentence("Only with", "only with");
        case Kind::needs:
            return sentence("Needs", "needs");
        case Kind::not_with:
            return sentence("Not with", "not with");
        default:
            return sentence("No effect with", "no effect with");
    }
}

std::string relations_in_words(const Option& option) {
    std::string text;
    for (const Relation& relation : option.relations) text += " " + relation.in_words();
    for (const ConditionalDefault& other : option.conditional_defaults)
        text += cat(" Default with ", condition_text(other.condition), ": ", value_text(other.value), ".");
    return text;
}

void apply_conditional_defaults(OptionSet& options, const std::set<std::string>& given) {
    for (const Option& option : options.options()) {
        if (given.count(option.full_name()) != 0) continue;
        for (const ConditionalDefault& other : option.conditional_defaults)
            if (holds(options, other.condition)) {
                option.set(other.value);
                break;
            }
    }
}

void check_relations(const OptionSet& options, const std::set<std::string>& given,
                     const std::vector<std::string>& sections, Errors& errors, std::vector<std::string>& notes) {
    for (const Option& option : options.options()) {
        if (std::find(sections.begin(), sections.end(), option.section) == sections.end()) continue;
        bool broken = false;
        for (const Relation& relation : option.relations) {
            if (broken || !applies(option, relation, given)) continue;
            if (relation.kind == Relation::Kind::unused_with) {
                for (const Condition& condition : relation.others)
                    if (holds(options, condition))
                        notes.push_back(cat(option.full_name(), " has no effect with ", condition_text(condition)));
                continue;
            }
            Names names = {option.full_name()};
            for (const Condition& condition : relation.others) names.push_back(condition.option);
            errors.check(names, [&] {
                broken = true;
                check_option(options, option, relation);
                broken = false;
            });
        }
    }
}

Json relation_schemas(const OptionSet& options) {
    Json all = Json::array();
    for (const Option& option : options.options())
        for (const Relation& relation : option.relations)
            if (!option.section.empty() && relation.kind != Relation::Kind::unused_with)
                all.push_back(relation_schema(options, option, relation));
    return all;
}

}  // namespace unsloth::config
