#include "unsloth/config/option_set.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

// How a field looks as JSON, and back. `from_json` relies on the checks of assign().
Json to_json(bool value) {
    return value;
}
Json to_json(int64_t value) {
    return value;
}
Json to_json(const std::string& value) {
    return value;
}

// 16 and not 16.0: what people write.
Json to_json(double value) {
    constexpr double exact = 9007199254740992.0;
    if (std::floor(value) == value && std::abs(value) < exact) return static_cast<int64_t>(value);
    return value;
}

template <class Element>
Json to_json(const std::vector<Element>& values) {
    Json list = Json::array();
    for (const auto& value : values) list.push_back(to_json(value));
    return list;
}

template <class Value>
Json to_json(const std::vector<std::pair<std::string, Value>>& entries) {
    Json object = Json::object();
    for (const auto& [key, value] : entries) object[key] = to_json(value);
    return object;
}

// The values are texts of scalars: 0.1 came from a number, "linear" from a string.
Json to_json(const std::vector<std::pair<std::string, std::string>>& entries) {
    Json object = Json::object();
    for (const auto& [key, text] : entries) {
        const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
        object[key] = value.is_number() || value.is_boolean() ? value : Json(text);
    }
    return object;
}

template <class Value>
Json to_json(const std::optional<Value>& value) {
    return value ? to_json(*value) : Json(nullptr);
}

void from_json(const Json& json, bool& field) {
    field = json.get<bool>();
}
void from_json(const Json& json, double& field) {
    field = json.get<double>();
}
void from_json(const Json& json, std::string& field) {
    field = json.get<std::string>();
}
void from_json(const Json& json, int64_t& field) {
    field = json.get<int64_t>();
}

template <class Element>
void from_json(const Json& json, std::vector<Element>& field) {
    field.clear();
    for (const auto& element : json) from_json(element, field.emplace_back());
}

template <class Value>
void from_json(const Json& json, std::vector<std::pair<std::string, Value>>& field) {
    field.clear();
    for (const auto& [key, value] : json.items()) from_json(value, field.emplace_back(key, Value{}).second);
}

void from_json(const Json& json, std::vector<std::pair<std::string, std::string>>& field) {
    field.clear();
    for (const auto& [key, value] : json.items())
        field.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
}

template <class Value>
void from_json(const Json& json, std::optional<Value>& field) {
    field.reset();
    if (!json.is_null()) from_json(json, field.emplace());
}

/// Whether full_name() of an option or alias is that. Declaring asks it for all pairs, so it makes no text.
template <class Named>
bool is_called(const Named& one, std::string_view full_name) {
    if (one.section.empty()) return one.key == full_name;
    const std::size_t dot = one.section.size();
    return full_name.size() == dot + 1 + one.key.size() && full_name[dot] == '.' && full_name.ends_with(one.key) &&
           full_name.starts_with(one.section);
}

std::string key_of(const std::string& name) {
    return name.substr(name.rfind('.') + 1);
}

}  // namespace

template <class Field>
void OptionSet::bind(Option& option, Field& field) {
    option.get = [&field] { return to_json(field); };
    option.set = [&field](const Json& value) { from_json(value, field); };
    option.default_value = option.get();
}

void OptionSet::section(std::string name, std::string title, std::string about, std::optional<OnResume> resuming) {
    sections_.push_back({std::move(name), std::move(title), std::move(about), resuming});
}

Option& OptionSet::append(std::string key, OptionType type, std::string help) {
    UNSLOTH_CHECK(!sections_.empty(), "option ", key, " before the first section");
    const std::string& section = sections_.back().name;
    const std::string full_name = section.empty() ? key : section + "." + key;
    UNSLOTH_CHECK(!find(full_name), "option ", full_name, " is declared twice");
    Option& option = options_.emplace_back();
    option.section = section;
    option.key = std::move(key);
    option.type = type;
    option.help = std::move(help);
    option.resuming = sections_.back().resuming;
    return option;
}

Option& OptionSet::add(std::string key, bool& field, std::string help) {
    Option& option = append(std::move(key), OptionType::boolean, std::move(help));
    return bind(option, field), option.bare_flag();
}

Option& OptionSet::add(std::string key, std::optional<bool>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::boolean, std::move(help));
    option.nullable = true;
    return bind(option, field), option.bare_flag();
}

Option& OptionSet::add(std::string key, int64_t& field, std::string help) {
    Option& option = append(std::move(key), OptionType::integer, std::move(help));
    return bind(option, field), option.value("N");
}

Option& OptionSet::add(std::string key, double& field, std::string help) {
    Option& option = append(std::move(key), OptionType::number, std::move(help));
    return bind(option, field), option.value("X");
}

Option& OptionSet::add(std::string key, std::string& field, std::string help) {
    Option& option = append(std::move(key), OptionType::text, std::move(help));
    return bind(option, field), option.value("TEXT");
}

Option& OptionSet::add(std::string key, std::optional<std::string>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::text, std::move(help));
    option.nullable = true;
    return bind(option, field), option.value("TEXT");
}

Option& OptionSet::add(std::string key, std::optional<double>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::number, std::move(help));
    option.nullable = true;
    return bind(option, field), option.value("X");
}

Option& OptionSet::add(std::string key, std::optional<int64_t>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::integer, std::move(help));
    option.nullable = true;
    return bind(option, field), option.value("N");
}

Option& OptionSet::add(std::string key, std::vector<std::string>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::text_list, std::move(help));
    return bind(option, field), option.value("A,B,…");
}

Option& OptionSet::add(std::string key, std::optional<std::vector<int64_t>>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::integer_list, std::move(help));
    option.nullable = true;
    return bind(option, field), option.value("N,N,…");
}

Option& OptionSet::add(std::string key, std::vector<std::pair<std::string, int64_t>>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::integer_map, std::move(help));
    return bind(option, field), option.value("JSON");
}

Option& OptionSet::add(std::string key, std::vector<std::pair<std::string, double>>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::number_map, std::move(help));
    return bind(option, field), option.value("JSON");
}

Option& OptionSet::add(std::string key, std::vector<std::pair<std::string, std::string>>& field, std::string help) {
    Option& option = append(std::move(key), OptionType::scalar_map, std::move(help));
    return bind(option, field), option.value("JSON");
}

Option& OptionSet::add_object(std::string key, std::string& json, std::string help) {
    Option& option = append(std::move(key), OptionType::object, std::move(help));
    option.get = [&json] { return Json::parse(json); };
    option.set = [&json](const Json& value) { json = value.dump(); };
    option.default_value = option.get();
    return option.value("JSON");
}

Option& OptionSet::add_json(std::string key, std::string& json, std::string help) {
    Option& option = append(std::move(key), OptionType::json, std::move(help));
    option.get = [&json] { return Json::parse(json); };
    option.set = [&json](const Json& value) { json = value.dump(); };
    option.default_value = option.get();
    option.nullable = option.default_value.is_null();
    return option.value("JSON");
}

void OptionSet::read_object(const Json& value, const std::string& origin) const {
    const Json object = value.is_string() ? Json{{options_.front().key, value}} : value;
    if (!object.is_object())
        throw Error("config.not-an-object", cat(origin, ": expected an object, found ", value.dump()));
    std::vector<std::string> notes;
    std::set<std::string> given;
    for (const auto& [key, member] : object.items()) {
        const auto found = find(key);
        if (!found) {
            std::string known;
            for (const auto& option : options_) known += cat(known.empty() ? "" : ", ", option.key);
            throw Error("option.unknown-key", cat(origin, ": unknown key ", key), cat("Known are ", known, "."));
        }
        assign(*found->option, member, cat(origin, ".", key), notes);
        given.insert(key);
    }
    for (const auto& option : options_)
        if (option.required && given.count(option.key) == 0)
            throw Error("option.missing", cat(origin, ": the key ", option.key, " is missing"));
}

Json OptionSet::object() const {
    Json members = Json::object();
    for (const auto& option : options_)
        if (option.required || option.get() != option.default_value) members[option.key] = option.get();
    return members;
}

void OptionSet::mark_unread(const std::function<bool(const Option&)>& is_unread) {
    for (Option& option : options_) option.unread = is_unread(option);
}

bool OptionSet::has_section(const std::string& name) const {
    return std::any_of(sections_.begin(), sections_.end(),
                       [&](const Section& section) { return section.name == name; });
}

std::vector<const Option*> OptionSet::options_of(const std::string& section) const {
    std::vector<const Option*> found;
    for (const auto& option : options_)
        if (option.section == section) found.push_back(&option);
    return found;
}

Option& OptionSet::at(const std::string& full_name) {
    const auto found = std::find_if(options_.begin(), options_.end(),
                                    [&](const Option& option) { return is_called(option, full_name); });
    UNSLOTH_CHECK(found != options_.end(), "there is no option ", full_name);
    return *found;
}

std::optional<Found> OptionSet::find(const std::string& full_name) const {
    for (const auto& option : options_) {
        if (is_called(option, full_name)) return Found{&option, nullptr};
        for (const auto& alias : option.aliases)
            if (is_called(alias, full_name)) return Found{&option, &alias};
    }
    return std::nullopt;
}

std::optional<Found> OptionSet::find_flag(const std::string& name) const {
    if (const auto exact = find(name)) return exact;
    std::optional<Found> only;
    std::vector<std::string> meanings;
    const auto consider = [&](const Option& option, const Alias* alias, const std::string& key) {
        if (key != name || (only && only->option == &option)) return;
        meanings.push_back(option.full_name());
        only = Found{&option, alias};
    };
    for (const bool unread : {false, true}) {
        if (only) break;
        for (const auto& option : options_) {
            if (option.unread != unread || option.full_name_only) continue;
            consider(option, nullptr, option.key);
            for (const auto& alias : option.aliases) consider(option, &alias, alias.key);
        }
    }
    if (meanings.size() > 1)
        throw Error("option.ambiguous", cat("--", name, " is the name of several options"),
                    did_you_mean(meanings, "--"));
    return only;
}

std::vector<std::string> OptionSet::suggestions(const std::string& name) const {
    const std::string key = key_of(name);
    std::vector<std::string> same_key, full_names, keys;
    const auto is_name_of = [&](const Option& option, const std::string& wanted) {
        const auto called = [&](const Alias& alias) { return alias.key == wanted; };
        return option.key == wanted || std::any_of(option.aliases.begin(), option.aliases.end(), called);
    };
    for (const auto& option : options_) {
        if (option.unread) continue;
        const auto& others = option.other_names;
        const bool other_name = std::find(others.begin(), others.end(), key) != others.end();
        if (is_name_of(option, key) || other_name) same_key.push_back(option.full_name());
        full_names.push_back(option.full_name());
        keys.push_back(option.key);
        for (const auto& alias : option.aliases) keys.push_back(alias.key);
    }
    if (!same_key.empty()) return same_key;
    if (name != key) {
        // The section is right more often than not: look there first.
        std::vector<std::string> found = nearest(name, full_names);
        std::erase_if(found, [&](const std::string& near) { return !is_like(key, key_of(near)); });
        if (!found.empty()) return found;
    }
    std::vector<std::string> found;
    for (const auto& near : nearest(key, keys)) {
        for (const auto& option : options_) {
            const bool listed = std::find(found.begin(), found.end(), option.full_name()) != found.end();
            if (is_name_of(option, near) && !listed && !option.unread) found.push_back(option.full_name());
        }
    }
    return found;
}

}  // namespace unsloth::config
