// The options of one command, bound to the objects that they fill.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/option.h"

namespace unsloth::config {

struct Section {
    std::string name, title, about;
};

/// What a name refers to: an option, and the alias if it was called by one.
struct Found {
    const Option* option = nullptr;
    const Alias* alias = nullptr;
};

class OptionSet {
  public:
    void section(std::string name, std::string title, std::string about);

    // Declares an option of the latest section. The field's present value becomes the documented default, so the bound
    // object must be freshly made, and it must outlive the set. A name that exists already is a CheckError.
    Option& add(std::string key, bool& field, std::string help);
    Option& add(std::string key, int64_t& field, std::string help);
    Option& add(std::string key, double& field, std::string help);
    Option& add(std::string key, std::string& field, std::string help);
    Option& add(std::string key, std::optional<std::string>& field, std::string help);
    Option& add(std::string key, std::vector<std::string>& field, std::string help);
    Option& add(std::string key, std::optional<std::vector<int64_t>>& field, std::string help);
    Option& add(std::string key, std::vector<std::pair<std::string, int64_t>>& field, std::string help);
    Option& add(std::string key, std::vector<std::pair<std::string, double>>& field, std::string help);
    Option& add(std::string key, std::vector<std::pair<std::string, std::string>>& field, std::string help);

    /// An enumeration by the names of its values.
    template <class Enum>
    Option& add_choice(std::string key, Enum& field, std::vector<std::pair<std::string, Enum>> names, std::string help);

    const std::vector<Section>& sections() const { return sections_; }
    const std::deque<Option>& options() const { return options_; }
    std::vector<const Option*> options_of(const std::string& section) const;

    /// By full name ("lora.r", an alias's too); nothing when unknown.
    std::optional<Found> find(const std::string& full_name) const;
    /// By full name, by a command's own name, or by a key that only one option has. A key of several options is a usage
    /// Error that names them.
    std::optional<Found> find_flag(const std::string& name) const;
    /// Full names of options that `name` (full, or only a key) may have meant; best first, possibly none.
    std::vector<std::string> suggestions(const std::string& name) const;

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

}  // namespace unsloth::config
