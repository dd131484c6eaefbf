// What a shell, `man` and docs/reference read of the option table.
#include <algorithm>
#include <sstream>

#include "app/command_line/commands.h"
#include "unsloth/config/option_table.h"
#include "unsloth/config/render.h"
#include "unsloth/core/error.h"
#include "unsloth/core/version.h"

namespace unsloth::app {
namespace {

/// A command with all of its options, alive as long as the object.
struct Described {
    explicit Described(const CommandInfo& info) : command(info) { declare_all_options(info, options, line); }
    Described(const Described&) = delete;
    Described& operator=(const Described&) = delete;

    /// "--r", or "--lora.r" where the key alone would not do.
    std::string shortest_flag(const Option& option) const {
        try {
            const auto found = options.find_flag(option.key);
            if (found && found->option == &option) return "--" + option.key;
        } catch (const Error&) {  // a key of several options
        }
        return "--" + option.full_name();
    }

    const CommandInfo& command;
    CommandLine line;
    OptionSet options;
};

std::vector<std::string> values_of(const Option& option) {
    return option.type == OptionType::boolean ? std::vector<std::string>{"true", "false"} : option.choices;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    return text;
}

/// "data_augment"
std::string shell_word(std::string command) {
    std::replace(command.begin(), command.end(), ' ', '_');
    return command;
}

std::string bash_script() {
    std::string commands_list, two_words, flags, values;
    for (const CommandInfo& command : commands()) {
        const Described described(command);
        const std::string key = shell_word(command.name);
        std::vector<std::string> names, full;
        for (const Option& option : described.options.options()) {
            if (option.positional || option.unread) continue;
            const std::string shortest = described.shortest_flag(option), long_name = "--" + option.full_name();
            names.push_back(shortest);
            if (long_name != shortest) full.push_back(long_name);
            if (const auto words = values_of(option); !words.empty())
                values += cat("        ", key, ":", option.key, ") words=\"", joined(words, " "), "\" ;;\n");
        }
        const std::string first = command.name.substr(0, command.name.find(' '));
        if ((" " + commands_list + " ").find(" " + first + " ") == std::string::npos) commands_list += " " + first;
        if (first != command.name) two_words += cat(two_words.empty() ? "" : "|", "\"", command.name, "\"");
        flags += cat("        ", key, ")\n            flags=\"", joined(names, " "), "\"\n            sections=\"",
                     joined(full, " "), "\" ;;\n");
    }
    return cat("# Completion of unsloth-train ", version,
               " for bash; made by unsloth-train config --completion bash.\n",
               R"sh(_unsloth_train() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=train flags= sections= words= word i
    local commands=")sh",
               commands_list.substr(1), R"sh( help"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        [ "$word" = launch ] && { command=launch; continue; }  # its ranks' command may follow
        case " $commands " in *" $word "*) command=$word; break ;; esac
    done
    case "$command ${COMP_WORDS[i+1]-}" in )sh",
               two_words, R"sh() command+=_${COMP_WORDS[i+1]} ;; esac
    case "$command" in
)sh",
               flags, R"sh(    esac
    case "$command:${before##*[.-]}" in
)sh",
               values, R"sh(    esac
    COMPREPLY=()
    if [[ $before == -* && -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    elif [[ $current == --*.* ]]; then
        COMPREPLY=($(compgen -W "$sections" -- "$current"))
    elif [[ $current == -* ]]; then
        [ "$COMP_CWORD" -eq 1 ] && flags+=" --help --help-all --version"
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
    else
        [ "$COMP_CWORD" -eq 1 ] && COMPREPLY=($(compgen -W "$commands" -- "$current"))
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}
complete -o filenames -F _unsloth_train unsloth-train
)sh");
}

std::string fish_script() {
    const auto quoted = [](std::string text) {
        for (std::size_t at = 0; (at = text.find_first_of("'\\", at)) != std::string::npos; at += 2)
            text.insert(at, "\\");
        return "'" + text + "'";
    };
    std::string text =
        cat("# Completion of unsloth-train ", version, " for fish; made by unsloth-train config --completion fish.\n");
    for (const CommandInfo& command : commands()) {
        if (command.name.find(' ') != std::string::npos) continue;
        text += cat("complete -c unsloth-train -n __fish_use_subcommand -a ", command.name, " -d ",
                    quoted(command.summary), "\n");
        const Described described(command);
        for (const Option& option : described.options.options()) {
            if (option.positional || option.unread) continue;
            const auto words = values_of(option);
            text += cat("complete -c unsloth-train -n '__fish_seen_subcommand_from ", command.name, "' -l ",
                        described.shortest_flag(option).substr(2), words.empty() ? " -r" : " -x -a ",
                        words.empty() ? "" : quoted(joined(words, " ")), " -d ", quoted(option.help), "\n");
        }
    }
    return text;
}

/// Text for roff: nothing of it is taken for a request or an escape.
std::string roff(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if ((c == '.' || c == '\'') && (i == 0 || text[i - 1] == '\n')) out += "\\&";
        if (c == '\\')
            out += "\\e";
        else if (c == '-')
            out += "\\-";
        else if (c == '|')
            out += "|\\:";  // lists of values may be longer than a line
        else if (text.compare(i, 3, "\u2026") == 0)
            out += "...", i += 2;
        else
            out += c;
    }
    return out;
}

/// Markdown's code without its marks.
std::string plain(std::string text) {
    std::erase(text, '`');
    return text;
}

std::string man_option(const Option& option) {
    std::string text = cat(".TP\n.B ", roff(option.positional ? option.placeholder : "--" + option.full_name()));
    const std::string values = joined(values_of(option), "|");
    if (!option.positional) text += cat(" \\fI", roff(values.empty() ? option.placeholder : values), "\\fR");
    text += "\n" + roff(option.help + relations_in_words(option));
    if (option.required) return text + " Required.\n";
    const std::string standard = option.default_value.dump();
    return text + (standard == "null" || standard == "\"\"" ? "\n" : cat(" Default: ", roff(standard), "\n"));
}

}  // namespace

std::string shell_completion(const std::string& shell) {
    if (shell == "fish") return fish_script();
    const std::string script = bash_script();
    if (shell == "bash") return script;
    return cat("#compdef unsloth-train\nautoload -U +X bashcompinit && bashcompinit\n", script);
}

std::string options_markdown() {
    Config config;
    OptionSet options;
    config::declare_options(options, config);
    std::string text = config::markdown_of_config(options);
    for (const auto& command : commands()) {
        CommandLine line;
        OptionSet own;
        declare_own_options(command, own, line);
        text += cat("\n## `unsloth-train ", command.name, " ", command.usage, "`\n", command.summary, "\n\n");
        if (command.takes_config()) text += cat("Reads of a configuration: ", command.use.in_words(), ".\n\n");
        text += config::markdown_table(own.options_of(""));
    }
    return text;
}

std::string manual_page() {
    std::string text =
        cat(".TH UNSLOTH\\-TRAIN 1 \"\" \"unsloth\\-train ", version, "\"\n",
            ".ad l\n.SH NAME\nunsloth\\-train \\- fine\\-tune language models of the Llama family with (Q)LoRA\n",
            ".SH SYNOPSIS\n");
    for (const CommandInfo& command : commands())
        text += cat(".B unsloth\\-train ", roff(command.name), "\n", roff(command.usage), "\n.br\n");
    text +=
        ".SH DESCRIPTION\nReads a Hugging Face checkpoint and rows, trains an adapter (or all weights), and writes "
        "what "
        "PEFT loads. Every option of a configuration is a key of the JSON file that\n.B \\-\\-config\nnames and a "
        "flag; "
        "flags win. Where a key is unique, the flag may omit the section's name.\n.B \\-\\-help\nlists the commands, "
        "and the options that are most used;\n.B \\-\\-help\\-all\nlists all of them.\n.SH "
        "COMMANDS\n";
    for (const CommandInfo& command : commands()) {
        CommandLine line;
        OptionSet own;
        declare_own_options(command, own, line);
        text += cat(".SS ", roff(command.name), "\n", roff(command.summary), "\n");
        for (const Option& option : own.options()) text += man_option(option);
        if (command.takes_config())
            text += cat(".PP\nReads of a configuration: ", roff(plain(command.use.in_words())), ".\n");
    }
    Config config;
    OptionSet options;
    config::declare_options(options, config);
    text += ".SH CONFIGURATION\n";
    for (const Section& section : options.sections()) {
        text += cat(".SS ", roff(section.title), "\n", roff(section.about), "\n");
        for (const Option* option : options.options_of(section.name)) text += man_option(*option);
    }
    return text +
           ".SH EXIT STATUS\n.TP\n.B 0\nfinished\n.TP\n.B 2\nusage or configuration\n.TP\n.B 3\nmodel, data or "
           "tokenizer\n.TP\n.B 4\nwhile running\n.TP\n.B 129, 130, 143\nstopped by SIGHUP, SIGINT or SIGTERM, after "
           "saving\n"
           ".SH ENVIRONMENT\n.TP\n.B HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE\nThe Hugging Face "
           "hub "
           "and its cache.\n.TP\n.B UNSLOTH_SECRET, UNSLOTH_SECRET_FILE\nWhat the ranks of a run of several machines "
           "know each other by.\n.TP\n.B CUDA_VISIBLE_DEVICES\nThe GPUs that are seen.\n";
}

}  // namespace unsloth::app
