#include <algorithm>
#include <string_view>
#include <vector>

#include "unsloth/config/peer_fields.h"
#include "unsloth/config/render.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

constexpr std::size_t help_column = 36;
constexpr std::size_t help_width = 100;

std::string placeholder_of(const Option& option) {
    if (option.type == OptionType::boolean) return "[BOOL]";
    if (option.type != OptionType::choice) return option.placeholder;
    std::string names;
    for (const auto& choice : option.choices) names += (names.empty() ? "" : "|") + choice;
    constexpr std::size_t longest = 32;
    return names.size() <= longest ? names : "NAME";
}

std::string default_text(const Option& option) {
    const Json& value = option.default_value;
    if (value.is_null() || value == "") return "none";
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array() && !value.is_object()) return value.dump();
    if (value.empty()) return "none";
    std::string text;
    for (const auto& element : value)
        text += cat(text.empty() ? "" : ",", element.is_string() ? element.get<std::string>() : element.dump());
    return text;
}

/// Help, choices that the placeholder does not show, other names, default.
std::string full_help(const Option& option) {
    std::string text = option.help + relations_in_words(option);
    const bool lists_choices = !option.choices.empty() && placeholder_of(option).find('|') == std::string::npos;
    if (lists_choices) {
        text += option.is_list() ? " Any of" : " One of";
        for (const auto& choice : option.choices) text += (choice == option.choices.front() ? " " : ", ") + choice;
        text += ".";
    }
    std::vector<std::string> names;  // one may be known in several sections, and the option's own in another
    for (const auto& alias : option.aliases)
        if (!alias.when_true && alias.key != option.key &&
            std::find(names.begin(), names.end(), alias.key) == names.end())
            names.push_back(alias.key);
    for (const std::string& name : names) text += (name == names.front() ? " Also called " : ", ") + name;
    return names.empty() ? text : text + ".";
}

// Bytes that start a character: "…" takes one column, not three.
std::size_t columns_of(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xC0) != 0x80; }));
}

void append_wrapped(std::string& out, std::size_t column, std::string_view text, std::size_t indent = help_column) {
    constexpr std::string_view space = " \n\t";
    bool first_of_line = true;
    for (std::size_t at; (at = text.find_first_not_of(space)) != text.npos;) {
        text.remove_prefix(at);
        const std::string_view word = text.substr(0, text.find_first_of(space));
        text.remove_prefix(word.size());
        if (!first_of_line && column + 1 + columns_of(word) > help_width) {
            out += "\n" + std::string(indent, ' ');
            column = indent;
            first_of_line = true;
        }
        if (!first_of_line) out += " ", ++column;
        out += word;
        column += columns_of(word);
        first_of_line = false;
    }
    out += "\n";
}

/// "  --lora.r N"
std::string name_in_help(const Option& option) {
    const std::string placeholder = placeholder_of(option);
    if (option.positional) return "  " + placeholder;
    return cat("  --", option.full_name(), placeholder.empty() ? "" : " ", placeholder);
}

std::string help_of_option(const Option& option) {
    std::string head = name_in_help(option);
    std::size_t column = columns_of(head);
    if (column + 2 > help_column) {
        head += "\n";
        column = 0;
    }
    head += std::string(help_column - column, ' ');
    const std::string fate = option.required ? " (required)" : " (default: " + default_text(option) + ")";
    append_wrapped(head, help_column, full_help(option) + fate);
    return head;
}

std::string escaped_cell(const std::string& text) {
    std::string cell;
    for (const char letter : text) cell += letter == '|' ? std::string("\\|") : std::string(1, letter);
    return cell;
}

std::string markdown_row(const Option& option) {
    const std::string fate = option.required ? "required" : cat("`", option.default_value.dump(), "`");
    std::string names = cat("`", option.positional ? option.placeholder : option.key, "`");
    for (const auto& alias : option.aliases) {
        const bool elsewhere = alias.section != option.section;
        names += cat(", `", elsewhere ? alias.full_name() : alias.key, alias.when_true ? ": true`" : "`");
    }
    // full_help() names the aliases in words; here the first column does.
    return cat("| ", escaped_cell(names), " | ", escaped_cell(expectation(option)), " | ", escaped_cell(fate), " | ",
               escaped_cell(option.help + relations_in_words(option)), " |\n");
}

std::string markdown_of_peer_fields() {
    std::string text =
        "\n## Fields of transformers, TRL and PEFT\nFields of `TrainingArguments`, `SFTConfig`, `LoraConfig` and "
        "`from_pretrained` that are no options here, so that a configuration of theirs can be carried over by "
        "sections. "
        "They are known in every section, and as flags.\n\n| field | what becomes of it |\n|---|---|\n";
    for (const auto& field : peer_fields())
        text += cat("| `", field.section, ".", field.key, "` | ", escaped_cell(describe(field)), " |\n");
    return text;
}

std::string names_by_fate(const OptionSet& options, OnResume fate) {
    std::string names;
    for (const Option& option : options.options())
        if (option.resuming == fate) names += cat(names.empty() ? "`" : ", `", option.full_name(), "`");
    return names;
}

}  // namespace

std::string wrapped_help(std::string head, std::string_view text, std::size_t indent) {
    const std::size_t column = columns_of(head);
    append_wrapped(head, column, text, indent);
    return head;
}

std::string help_of_options(const OptionSet& options) {
    std::string text;
    for (const auto& section : options.sections()) {
        auto members = options.options_of(section.name);
        std::erase_if(members, [](const Option* option) { return option->unread; });
        if (members.empty()) continue;
        if (section.name.empty()) {
            text += "\nOptions of " + section.title + "\n";
        } else {
            text += "\n" + wrapped_help(section.title + ": ", section.about, 2);
        }
        for (const Option* option : members) text += help_of_option(*option);
    }
    return text;
}

std::string help_of_most_used(const OptionSet& options) {
    constexpr std::size_t words_column = 44;  // after the longest name
    std::string text;
    for (const Option& option : options.options()) {
        if (option.brief.empty()) continue;
        const std::string name = name_in_help(option), standard = default_text(option);
        text += cat(name, std::string(words_column - std::min(name.size(), words_column - 1), ' '), option.brief,
                    standard == "none" ? "" : cat(" (", standard, ")"), "\n");
    }
    return text;
}

std::string markdown_table(const std::vector<const Option*>& options) {
    std::string text = "| option | value | default | meaning |\n|---|---|---|---|\n";
    for (const Option* option : options) text += markdown_row(*option);
    return text;
}

std::string markdown_of_config(const OptionSet& options) {
    std::string text =
        "# Options\n"
        "This page is generated by `unsloth-train config --markdown`; a test keeps it up to date.\n\n"
        "A configuration file is JSON (`//` comments are allowed) or YAML (.yaml, .yml) with the sections below. On "
        "the command line an "
        "option "
        "is `--section.key VALUE` or `--section.key=VALUE`; where a key is unique, `--key VALUE` "
        "works "
        "too, and dashes may replace underscores. A boolean flag needs no value. Lists are written as JSON or with "
        "commas, maps as JSON, an absent value as `null`. Flags win over the file. Relative paths are relative to the "
        "working directory.\n";
    for (const auto& section : options.sections()) {
        text += "\n## " + section.title + ": `" + section.name + "`\n" + section.about + "\n\n" +
                markdown_table(options.options_of(section.name));
    }
    text +=
        cat("\n## Resuming\n<a id=\"going-on-from-a-checkpoint\"></a>\n"
            "A resumed run (`resume_from_checkpoint`) may change these options, and the log reports the change: ",
            names_by_fate(options, OnResume::logged),
            ".\n\nThese may change without a report, because they only affect how a run is executed: ",
            names_by_fate(options, OnResume::mutable_),
            ".\n\nAll others are immutable, because the completed steps depend on them.\n");
    return text + markdown_of_peer_fields() +
           "\n# Commands\nA command that reads `--config` lists the options that it uses. They are flags too; others "
           "may be in the file.\n";
}

}  // namespace unsloth::config
