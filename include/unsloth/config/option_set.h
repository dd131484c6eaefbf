// The options of one command, bound to the objects that they fill.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/option.h"

namespace unsloth::config {

struct Section {
    std::string name, title, about;
    std::optional<OnResume> resuming;  ///< of its options that do not say it themselves
};

/// What a name refers to: an option, and the alias if it was called by one.
struct Found {
    const Option* option = nullptr;
    const Alias* alias = nullptr;
};

class OptionSet {
  public:
    void section(std::string name, std::string title, std::string about, std::optional<OnResume> resuming = {});

    // Declares an option of the latest section. The field's present value becomes the documented default, so the bound
    // object must be freshly made, and it must outlive the set. A name that exists already is a CheckError.
    Option& add(std::string key, bool& field, std::string help);
    Option& add(std::string key, int64_t& field, std::string help);
    Option& add(std::string key, double& field, std::string help);
    Option& add(std::string key, std::string& field, std::string help);
    Option& add(std::string key, std::optional<bool>& field, std::string help);
    Option& add(std::string key, std::optional<std::string>& field, std::string help);
    Option& add(std::string key, std::optional<double>& field, std::string help);
    Option& add(std::string key, std::optional<int64_t>& field, std::string help);
    Option& add(std::string key, std::vector<std::string>& field, std::string help);
    Option& add(std::string key, std::optional<std::vector<int64_t>>& field, std::string help);
    Option& add(std::string key, std::vector<std::pair<std::string, int64_t>>& field, std::string help);
    Option& add(std::string key, std::vector<std::pair<std::string, double>>& field, std::string help);
    Option& add(std::string key, std::vector<std::pair<std::string, std::string>>& field, std::string help);

    /// An enumeration by the names of its values.
    template <class Enum>
    Option& add_choice(std::string key, Enum& field, std::vector<std::pair<std::string, Enum>> names, std::string help);

    /// An object of any members, kept as its JSON text.
    Option& add_object(std::string key, std::string& json, std::string help);

    /// A list or an object, kept as its JSON text; "null" where it is nullable and absent.
    Option& add_json(std::string key, std::string& json, std::string help);

    /// A list of objects; `declare` declares the keys of one. A string in the list means an object with that value
    /// of the first key.
    template <class Element>
    Option& add_list(std::string key, std::vector<Element>& field, void (*declare)(OptionSet&, Element&),
                     std::string help);

    /// Marks options that the command at hand has no use for: help and suggestions pass over them.
    void mark_unread(const std::function<bool(const Option&)>& is_unread);

    const std::vector<Section>& sections() const { return sections_; }
    const std::deque<Option>& options() const { return options_; }
    bool has_section(const std::string& name) const;
    std::vector<const Option*> options_of(const std::string& section) const;

    /// By full name; a CheckError when there is none.
    Option& at(const std::string& full_name);

    /// By full name ("lora.r", an alias's too); nothing when unknown.
    std::optional<Found> find(const std::string& full_name) const;
    /// By full name, by a command's own name, or by a key that only one option has, of those that are read if one is. A
    /// key of several options is a usage Error that names them.
    std::optional<Found> find_flag(const std::string& name) const;
    /// Full names of options that `name` (full, or only a key) may have meant; best first, possibly none.
    std::vector<std::string> suggestions(const std::string& name) const;

    /// Assigns an object's members to the options of a section without name; usage Error with `origin`.
    void read_object(const Json& object, const std::string& origin) const;
    /// The options as an object, without those that have their default.
    Json object() const;

  private:
    Option& append(std::string key, OptionType type, std::string help);
    template <class Field>
    static void bind(Option& option, Field& field);

    std::vector<Section> sections_;
    std::deque<Option> options_;  // references to options stay valid
};

template <class Enum>
Option& OptionSet::add_choice(std::string key, Enum& field, std::vector<std::pair<std::string, Enum>> names,
                              std::string help) {
    Option& option = append(std::move(key), OptionType::choice, std::move(help));
    for (const auto& [name, value] : names) option.choices.push_back(name);
    option.get = [&field, names]() -> Json {
        for (const auto& [name, value] : names)
            if (value == field) return name;
        return nullptr;
    };
    option.set = [&field, names](const Json& chosen) {
        for (const auto& [name, value] : names)
            if (chosen == name) field = value;
    };
    option.default_value = option.get();
    return option;
}

template <class Element>
Option& OptionSet::add_list(std::string key, std::vector<Element>& field, void (*declare)(OptionSet&, Element&),
                            std::string help) {
    const auto with_options = [declare](Element& element, const auto& use) {
        OptionSet options;
        options.section("", "", "");
        declare(options, element);
        use(options);
    };
    const auto read = [with_options](const Json& list, const std::string& origin) {
        std::vector<Element> elements;
        for (const Json& value : list)
            with_options(elements.emplace_back(), [&](const OptionSet& options) {
                options.read_object(value, origin + "[" + std::to_string(elements.size() - 1) + "]");
            });
        return elements;
    };
    Option& option = append(std::move(key), OptionType::object_list, std::move(help));
    option.check_elements = read;
    option.set = [&field, read](const Json& list) { field = read(list, ""); };
    option.get = [&field, with_options] {
        Json list = Json::array();
        for (const Element& element : field) {
            // The options take the element's members for their defaults: declare with a fresh one, then fill it.
            Element copy;
            with_options(copy, [&](const OptionSet& options) {
                copy = element;
                list.push_back(options.object());
            });
        }
        return list;
    };
    // The keys for the schema are bound to an element that lives as long as they do.
    struct Keys {
        Element element;
        OptionSet options;
    };
    const auto keys = std::make_shared<Keys>();
    keys->options.section("", "", "");
    declare(keys->options, keys->element);
    option.elements = std::shared_ptr<const OptionSet>(keys, &keys->options);
    option.default_value = option.get();
    return option.value("JSON");
}

}  // namespace unsloth::config
