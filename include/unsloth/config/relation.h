// What options say about each other, as data. Validation, --help, docs/reference/options and the JSON Schema all read
// it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "unsloth/config/json.h"
#include "unsloth/core/error_id.h"

namespace unsloth::config {

struct Option;
class OptionSet;
class Errors;

/// Some of an option's values.
struct ValueSet {
    enum class Kind { set, among, except };
    Kind kind = Kind::set;     ///< set: any value but the default
    std::vector<Json> listed;  ///< of the other two

    bool contains(const Json& value, const Json& default_value) const;
};

/// True where the option's value is one of these.
struct Condition {
    std::string option;  ///< full name; a command's own option by its key
    ValueSet values;
};

/// A rule for the values `when` of the option that carries it. Defaults that no one wrote never break a rule.
struct Relation {
    enum class Kind {
        only_with,   ///< one of `others` must hold: without it the option has no use
        needs,       ///< one of `others` must hold: without it the option cannot work
        not_with,    ///< none of `others` may hold
        unused_with  ///< where one of `others` holds, a note says that the option has no effect
    };
    Kind kind = Kind::only_with;
    std::vector<Condition> others;
    ValueSet when;
    std::string reason;              ///< follows the message; empty: it says enough
    std::string advice;              ///< instead of the usual one
    std::optional<ErrorId> id = {};  ///< of the Error, instead of the kind's

    /// Of the Error where the rule is broken.
    ErrorId error_id() const;
    /// For help: "Only with training.objective dpo, orpo or kto."
    std::string in_words() const;
};

/// Another default where a condition holds.
struct ConditionalDefault {
    Condition condition;
    Json value;
};

/// The option's relations and conditional defaults as sentences for help, each after a space; empty: it has none.
std::string relations_in_words(const Option& option);

/// Gives options that are not `given` the default that their conditions ask for.
void apply_conditional_defaults(OptionSet& options, const std::set<std::string>& given);

/// Adds a usage Error for each option that breaks a relation, and a note for each that has no effect. `sections`: only
/// options of these.
void check_relations(const OptionSet& options, const std::set<std::string>& given,
                     const std::vector<std::string>& sections, Errors& errors, std::vector<std::string>& notes);

/// The relations between options of sections as JSON Schemas {"if", "then"} of a configuration file. What only peers'
/// fields say satisfies them.
Json relation_schemas(const OptionSet& options);

}  // namespace unsloth::config
