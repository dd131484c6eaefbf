// One option, declared once: its names, type, check, default and help. Reading JSON and flags, --help, the effective
// configuration, the JSON Schema and docs/reference/options are all made from this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/json.h"
#include "unsloth/config/load.h"
#include "unsloth/config/relation.h"

namespace unsloth::config {

/// `choice` is a string out of `choices`. Maps keep their order; the values of a scalar_map are strings, numbers or
/// booleans, those of an object anything; an object with `choices` may be one of these strings instead. An object_list
/// is a list of objects whose keys are declared as options too; json is a list or an object, which who uses it checks.
enum class OptionType {
    boolean,
    integer,
    number,
    text,
    choice,
    text_list,
    integer_list,
    integer_map,
    number_map,
    scalar_map,
    object,
    object_list,
    json,
};

class OptionSet;

/// Bounds of a number, of a list's elements or of a map's values.
struct Range {
    std::optional<double> minimum, maximum;
    bool exclusive_minimum = false, exclusive_maximum = false;
};

/// Another name. With `when_true` it is a boolean whose `true` means that value (bf16 for dtype).
struct Alias {
    std::string section, key;
    std::optional<Json> when_true;

    std::string full_name() const { return section.empty() ? key : section + "." + key; }
};

/// A value that other programs' users write, and the one it means.
struct Synonym {
    Json written, meant;
    std::string note;  ///< shown to the user when it is used; may be empty
};

/// `get` and `set` are bound to one object's field, which must outlive the option. `set` expects a checked value.
struct Option {
    std::string section;  ///< empty: an option of a single command
    std::string key;
    OptionType type = OptionType::text;
    bool nullable = false;
    std::string help;
    std::string placeholder;           ///< what --help shows for the value
    std::string brief;                 ///< its line in the short --help, for the options most used; else empty
    std::vector<std::string> choices;  ///< of a choice, or of the elements of a text_list
    Range range;
    std::vector<Alias> aliases;
    std::string former;  ///< its key before it was renamed; empty: it was not
    std::vector<Synonym> synonyms;
    std::string remedy;  ///< shown with the refusal of a value
    /// Values of other programs that mean something else than any choice, each with what to do instead.
    std::vector<std::pair<std::string, std::string>> foreign_values;
    std::vector<std::string> other_names;  ///< names from other programs; only suggested, never accepted
    bool accepts_number_as_text = false;
    bool flag_needs_no_value = false;  ///< `--key` alone means true
    bool adds_to_list = false;         ///< a flag that is given again adds to what is there
    bool one_text = false;             ///< of a text_list: a flag's text that is no JSON list is one text, unchanged
    bool positional = false;
    /// Which arguments that are no flags are this option's value; null: none.
    bool (*is_named_by)(const std::string& argument) = nullptr;
    bool is_path = false;                  ///< a leading ~ is the user's home folder
    bool is_output = false;                ///< a file that the command writes
    bool required = false;                 ///< of a command's own option
    bool unread = false;                   ///< the command at hand has no use for it
    bool full_name_only = false;           ///< another option had its key first
    std::optional<OnResume> resuming;      ///< of every option of a configuration
    std::optional<bool> changes_examples;  ///< whether encoded rows depend on it; of every option of data
    std::vector<Relation> relations;
    std::vector<ConditionalDefault> conditional_defaults;  ///< the first that holds counts
    std::shared_ptr<const OptionSet> elements;             ///< the keys of an object_list's objects

    std::function<Json()> get;
    std::function<void(const Json&)> set;
    /// Of an object_list: usage Error, with the place in the list, for an element that its keys' options refuse.
    std::function<void(const Json&, const std::string& origin)> check_elements;
    Json default_value;  ///< the field's value when the option was declared

    /// "section.key", or "key" for a command's own option.
    std::string full_name() const { return section.empty() ? key : section + "." + key; }
    bool is_map() const;
    /// Whether null is a value of it, or means one.
    bool takes_null() const;
    /// Whether null means another value than the default.
    bool null_changes_it() const;
    bool is_list() const { return type == OptionType::text_list || type == OptionType::integer_list; }

    // For declarations, each returning the option itself.
    Option& value(std::string text) { return placeholder = std::move(text), *this; }
    /// The short --help lists it, with these words of at most 36 characters together with the default.
    Option& most_used(std::string words) { return brief = std::move(words), *this; }
    Option& path(std::string text) { return is_path = true, value(std::move(text)); }
    Option& output(std::string text) { return is_output = true, path(std::move(text)); }
    Option& at_least(double bound) { return range.minimum = bound, *this; }
    Option& at_most(double bound) { return range.maximum = bound, *this; }
    Option& above(double bound) { return range.exclusive_minimum = true, at_least(bound); }
    Option& below(double bound) { return range.exclusive_maximum = true, at_most(bound); }
    Option& one_of(std::vector<std::string> names) { return choices = std::move(names), *this; }
    /// An alias that was the option's name: import-config writes it, so that earlier versions read the file, too.
    Option& formerly(std::string in_section, std::string name) {
        former = name;
        return alias(std::move(in_section), std::move(name));
    }
    Option& alias(std::string in_section, std::string name) {
        return aliases.push_back({std::move(in_section), std::move(name), {}}), *this;
    }
    Option& shorthand(std::string in_section, std::string name, Json when_true) {
        return aliases.push_back({std::move(in_section), std::move(name), std::move(when_true)}), *this;
    }
    Option& synonym(Json written, Json meant, std::string note = {}) {
        return synonyms.push_back({std::move(written), std::move(meant), std::move(note)}), *this;
    }
    Option& refused_with(std::string text) { return remedy = std::move(text), *this; }
    Option& known_elsewhere(const std::vector<std::string>& values, const std::string& advice) {
        for (const std::string& value : values) foreign_values.emplace_back(value, advice);
        return *this;
    }
    Option& suggested_for(std::vector<std::string> names) { return other_names = std::move(names), *this; }
    Option& number_as_text() { return accepts_number_as_text = true, *this; }
    Option& bare_flag() { return flag_needs_no_value = true, *this; }
    Option& adds_up() { return adds_to_list = true, *this; }
    Option& verbatim() { return one_text = true, adds_up(); }
    Option& argument() { return positional = true, *this; }
    Option& or_bare(bool (*names_it)(const std::string&)) { return is_named_by = names_it, *this; }
    Option& must_be_given() { return required = true, *this; }
    Option& on_resume(OnResume fate) { return resuming = fate, *this; }

    // Relations to other options, which may be declared later. `values`: those of the other option; without them, any
    // but its default.
    Option& only_with(std::string option) { return relate(Relation::Kind::only_with, {{std::move(option), {}}}); }
    Option& only_with(std::string option, std::vector<Json> values) {
        return relate(Relation::Kind::only_with, {{std::move(option), among(std::move(values))}});
    }
    Option& needs(const std::vector<std::string>& any_of) {
        std::vector<Condition> others;
        for (const std::string& option : any_of) others.push_back({option, {}});
        return relate(Relation::Kind::needs, std::move(others));
    }
    Option& not_with(std::string option) { return relate(Relation::Kind::not_with, {{std::move(option), {}}}); }
    Option& not_with(std::string option, std::vector<Json> values) {
        return relate(Relation::Kind::not_with, {{std::move(option), among(std::move(values))}});
    }
    Option& unused_with(std::string option, std::vector<Json> values) {
        return relate(Relation::Kind::unused_with, {{std::move(option), among(std::move(values))}});
    }
    Option& default_with(std::string option, std::vector<Json> values, Json value) {
        conditional_defaults.push_back({{std::move(option), among(std::move(values))}, std::move(value)});
        return *this;
    }
    /// The same, where the other option has another value than its default.
    Option& default_with(std::string option, Json value) {
        return conditional_defaults.push_back({{std::move(option), {}}, std::move(value)}), *this;
    }
    // Of the latest relation:
    /// For these values of this option alone; `when_not`: for all but these.
    Option& when(std::vector<Json> values) { return relations.back().when = among(std::move(values)), *this; }
    Option& when_not(std::vector<Json> values) {
        return relations.back().when = {ValueSet::Kind::except, std::move(values)}, *this;
    }
    Option& because(std::string reason) { return relations.back().reason = std::move(reason), *this; }
    Option& or_else(std::string advice) { return relations.back().advice = std::move(advice), *this; }
    /// The id of the Error; without one it is option.no-effect, option.missing or option.conflict, by the kind.
    Option& error(ErrorId id) { return relations.back().id = id, *this; }

  private:
    static ValueSet among(std::vector<Json> values) { return {ValueSet::Kind::among, std::move(values)}; }
    Option& relate(Relation::Kind kind, std::vector<Condition> others) {
        return relations.push_back({kind, std::move(others), {}, "", ""}), *this;
    }
};

/// "an integer >= 1", "one of lora, full", "a list of …, or null": completes "expected …".
std::string expectation(const Option& option);

/// What to do about a value that is none of the option's choices; empty: nothing is known.
std::string advice_on_value(const Option& option, const std::string& value);

/// Assigns after checking type, choices and range. `origin` names the place ("run.json: lora.r", "--lora.r") in the
/// usage Error that a value of another kind throws. Notes of a synonym are appended to `notes`.
void assign(const Option& option, const Json& value, const std::string& origin, std::vector<std::string>& notes);

/// What the text of a flag means for this option; a text that does not fit stays a string, which `assign` refuses.
/// Throws a usage Error for broken JSON.
Json parse_flag_text(const Option& option, const std::string& text, const std::string& origin);

/// A path as a shell would give it: ~ and ~/… begin with $HOME, where that is set.
std::string expand_home(const std::string& path);

/// "5GB", "500 MB", "2GiB", "1000000": bytes, above 0; KB, MB, GB, TB count in thousands, KiB, MiB, GiB, TiB in 1024s.
/// Usage Error, naming `origin`, for anything else.
int64_t parse_byte_size(const std::string& text, const std::string& origin);

/// true/yes/on/1, false/no/off/0, in any case.
std::optional<bool> parse_boolean(const std::string& text);

}  // namespace unsloth::config
