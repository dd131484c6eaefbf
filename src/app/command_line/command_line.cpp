#include "app/command_line/command_line.h"

#include <algorithm>
#include <charconv>

#include "app/command_line/commands.h"
#include "app/command_line/launch_line.h"
#include "app/sweep/axes.h"
#include "unsloth/config/errors.h"
#include "unsloth/config/option_table.h"
#include "unsloth/config/parse.h"
#include "unsloth/config/render.h"
#include "unsloth/config/validate.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::app {
namespace {

bool contains(const std::vector<std::string>& arguments, const std::string& text) {
    return std::find(arguments.begin(), arguments.end(), text) != arguments.end();
}

/// What a command cannot do without. `options`: full names; one of them will do.
class Presence {
  public:
    Presence(const CommandInfo& command, const ParseRecord& record, Errors& errors)
        : command_(command.name), record_(record), errors_(errors) {}

    /// The same for a command whose name says less than what was typed.
    Presence called(const std::string& name) const {
        Presence other = *this;
        other.command_ = name;
        return other;
    }
    /// An option of a section may come from the file, which an argument in doubt may have named.
    void need(bool present, Names options, const std::string& flag, const std::string& advice = {}) {
        if (options.front().find('.') != std::string::npos) options.push_back("config");
        errors_.check(options, [&] {
            if (!present) throw Error("option.missing", cat(command_, " needs ", flag), advice);
        });
    }
    void need_model(const Config& config) {
        need(!config.model.path.empty(), {"model.path"}, "--model.path",
             "In a configuration file: {\"model\": {\"path\": \"models/llama\"}}.");
    }
    /// A model, or an adapter, which names its base.
    void need_base(const Config& config) {
        if (!config.model.adapter_name_or_path) need_model(config);
    }
    /// `or_sources`: data.datasets will do as well.
    void need_train_file(const DataOptions& data, bool or_sources) {
        need(!data.train_file.empty() || (or_sources && !data.datasets.empty()), {"data.train_file", "data.datasets"},
             "--data.train_file", "In a configuration file: {\"data\": {\"train_file\": \"train.jsonl\"}}.");
    }
    void need_evaluation_rows(const DataOptions& data) {
        const bool held_out = data.val_size > 0 && (!data.train_file.empty() || !data.datasets.empty());
        need(data.eval_file || !data.eval_files.empty() || !data.eval_split.empty() || held_out,
             {"data.eval_file", "data.eval_files", "data.eval_split", "data.val_size", "data.train_file",
              "data.datasets"},
             "--data.eval_file",
             "In a configuration file: {\"data\": {\"eval_file\": \"test.jsonl\"}}; or data.val_size, which holds out "
             "rows of data.train_file.");
    }
    bool has(const char* option) const { return record_.given.count(option) != 0; }
    void need_one(const char* first, const char* second) {
        need(has(first) || has(second), {first, second}, cat("--", first, " or --", second));
    }
    void need_exactly_one(const char* first, const char* second) {
        refuse(has(first) && has(second), cat(command_, " takes --", first, " or --", second, ", not both"));
        need_one(first, second);
    }
    void refuse(bool wrong, const std::string& message) {
        if (wrong) errors_.add(Error("option.unsupported", message));
    }

  private:
    std::string command_;
    const ParseRecord& record_;
    Errors& errors_;
};

void check_generate(const GenerateRequest& generate, Presence presence) {
    const bool file = !generate.file.empty();
    presence.refuse(presence.has("prompt") && file, "generate takes --prompt or --file, not both");
    presence.need(generate.chat || file || presence.has("prompt"), {"prompt", "file"}, "--prompt, --file or --chat");
}

void read_folders(NamedFolders& adapters) {
    for (const std::string& text : adapters.typed) {
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
            throw Error("option.invalid-value", cat("--adapter: expected NAME=DIR, found '", text, "'"),
                        "One adapter for all prompts is --model.adapter_name_or_path DIR.");
        const std::string name = text.substr(0, equals);
        for (const auto& [other, folder] : adapters.folders)
            if (other == name) throw Error("option.conflict", cat("--adapter: two are named '", name, "'"));
        adapters.folders.emplace_back(name, config::expand_home(text.substr(equals + 1)));
    }
}

/// What command options of a type of their own say.
void read_texts(CommandLine& line, Errors& errors) {
    errors.check({"max_shard_size"}, [&] {
        line.merge.max_shard_bytes = config::parse_byte_size(line.merge.max_shard_size, "--max_shard_size");
        line.quantize.max_shard_bytes = config::parse_byte_size(line.quantize.max_shard_size, "--max_shard_size");
        line.prune.max_shard_bytes = config::parse_byte_size(line.prune.max_shard_size, "--max_shard_size");
    });
    errors.check({"grid"}, [&] {
        if (line.command == Command::sweep) read_axes(line.sweep, line.typed, line.loaded.config);
    });
    errors.check({"gpu_memory"}, [&] {
        if (!line.plan.gpu_memory.empty())
            line.plan.gpu_memory_bytes = config::parse_byte_size(line.plan.gpu_memory, "--gpu_memory");
    });
    GenerateRequest& generate = line.generate;
    errors.check({"kv_cache_memory"}, [&] {
        if (!generate.kv_memory.empty())
            generate.kv_bytes = config::parse_byte_size(generate.kv_memory, "--kv_cache_memory");
    });
    errors.check({"logit_bias"}, [&] {
        for (const auto& [id, bias] : generate.logit_bias) {
            int32_t number = -1;
            const char* const end = id.data() + id.size();
            if (std::from_chars(id.data(), end, number).ptr != end || number < 0)
                throw Error("option.invalid-value", cat("--logit_bias: '", id, "' is no token's id"));
            generate.sampling.logit_bias.emplace_back(number, static_cast<float>(bias));
        }
    });
    errors.check({"adapter"}, [&] {
        for (NamedFolders* adapters : {&generate.adapters, &line.bench.adapters}) read_folders(*adapters);
        if (!line.loaded.config.model.adapter_name_or_path) return;
        if (!generate.adapters.folders.empty() || !line.bench.adapters.folders.empty())
            throw Error("option.conflict", "--adapter and --model.adapter_name_or_path are both given",
                        "Name that one too, with --adapter NAME=DIR.");
    });
    errors.check({"stop"}, [&] {
        for (const std::string& text : generate.stop)
            if (text.empty())
                throw Error("option.invalid-value",
                            "--stop: an empty text would end every answer before its first token");
    });
}

void check_bench(const CommandLine& line, Presence& presence, Errors& errors) {
    const Config& config = line.loaded.config;
    presence.need(presence.has("what") || line.bench.check, {"what"}, "step|ops|gemm|nf4|scaling|comm|generate|grpo",
                  "Or --check. unsloth-train help bench says what each measures.");
    errors.check({"what"}, [&] {
        if (!presence.has("what")) return;
        if (line.bench.what == BenchSubject::step) presence.called("bench step").need_model(config);
        if (line.bench.what == BenchSubject::generate) presence.called("bench generate").need_model(config);
        if (line.bench.what == BenchSubject::grpo) presence.called("bench grpo").need_model(config);
        presence.refuse(line.bench.what != BenchSubject::generate && !line.bench.adapters.typed.empty(),
                        "only bench generate takes --adapter");
        const bool of_runs = std::any_of(line.typed.begin(), line.typed.end(), [](const std::string& name) {
            return name.starts_with("data.") || name.starts_with("grpo.");
        });
        presence.refuse(line.bench.what != BenchSubject::grpo && of_runs,
                        "only bench grpo takes options of the sections data and grpo");
    });
}

void check_presence(const CommandLine& line, Presence presence, Errors& errors) {
    const Config& config = line.loaded.config;
    switch (line.command) {
        case Command::train:
            presence.need_model(config);
            if (!config.grpo.replay_rollouts) presence.need_train_file(config.data, true);
            break;
        case Command::score:
            presence.need_base(config), presence.need_train_file(config.data, false);
            break;
        case Command::generate:
            if (line.generate.adapters.typed.empty()) presence.need_base(config);
            check_generate(line.generate, presence);
            break;
        case Command::serve:
            if (line.generate.adapters.typed.empty()) presence.need_base(config);
            presence.refuse(line.serve.tls_cert.empty() != line.serve.tls_key.empty(),
                            "serve takes --tls_cert and --tls_key together");
            break;
        case Command::evaluate:
            presence.need_base(config), presence.need_evaluation_rows(config.data);
            break;
        case Command::init:
            presence.need_exactly_one("shape", "model_config");
            break;
        case Command::exporting:
            presence.called("export gguf").need_one("model.path", "model.adapter_name_or_path");
            break;
        case Command::tune:
            presence.called("tune").need_model(config);
            break;
        case Command::bench:
            check_bench(line, presence, errors);
            break;
        case Command::plan:
            presence.need_model(config);
            break;
        case Command::sweep:
            presence.need_model(config), presence.need_train_file(config.data, true);
            presence.need_evaluation_rows(config.data);
            presence.refuse(line.sweep.find_lr && !line.sweep.axes.empty(),
                            "sweep takes settings or --find_lr, not both");
            presence.need(line.sweep.find_lr || !line.sweep.grid.empty() || !line.sweep.axes.empty(),
                          {"grid", "find_lr"}, "--grid, a flag with several values, or --find_lr",
                          "For example: unsloth-train sweep run.json --learning_rate 1e-4,2e-4,4e-4");
            break;
        case Command::data:
            presence.need_train_file(config.data, true);
            break;
        case Command::prune:
            presence.need_model(config);
            presence.need(presence.has("layers") || presence.has("intermediate") || presence.has("experts") ||
                              presence.has("wanda"),
                          {"layers", "intermediate", "experts", "wanda"},
                          "--layers, --intermediate, --experts or --wanda");
            break;
        case Command::merge:
            errors.check({"device"}, [&] { config::check_device(line.merge.device, "--device"); });
            break;
        case Command::explain:
            presence.refuse(line.explain.markdown && !line.explain.id.empty(),
                            "explain takes an ID or --markdown, not both");
            break;
        case Command::config:
            presence.refuse(
                line.config.schema + line.config.markdown + line.config.man + !line.config.completion.empty() > 1,
                "config prints one of --schema, --markdown, --man and --completion");
            break;
        default:
            break;
    }
}

/// As it is typed: an argument by its placeholder.
std::string shown(const Option& option) {
    return option.positional ? option.placeholder : "--" + option.full_name();
}

void check_required(const CommandInfo& command, const OptionSet& options, const ParseRecord& record,
                    Presence presence) {
    for (const auto& option : options.options()) {
        const bool present = record.given.count(option.full_name()) != 0 && option.get() != "";
        if (option.required)
            presence.need(present, {option.full_name()}, shown(option),
                          cat("Usage: unsloth-train ", command.name, " ", command.usage));
    }
}

void collect_paths(const OptionSet& options, const ParseRecord& record, CommandLine& line) {
    for (const Option& option : options.options()) {
        if (!option.is_path || record.given.count(option.full_name()) == 0) continue;
        if (const Json path = option.get(); path.is_string() && path != "")
            (option.is_output ? line.outputs : line.inputs).push_back({shown(option), path.get<std::string>()});
    }
}

void read_arguments(const CommandInfo& command, const std::vector<std::string>& arguments, CommandLine& line) {
    OptionSet options;
    declare_all_options(command, options, line);

    ParseRecord record{.advice_on_flag = advice_on_foreign_option};
    auto assignments = config::parse_flags(arguments, options, record);
    for (const auto& assignment : assignments) {
        if (assignment.option->unread)
            record.errors.add(
                Error("option.not-of-command",
                      cat(command.name, " does not read ", assignment.option->full_name(), ", which ",
                          assignment.origin, " gives"),
                      cat("unsloth-train help ", command.name, " lists what it reads; a file may hold the rest.")),
                {assignment.option->full_name()});
        // The file comes first, so that flags win over it.
        if (command.takes_config() && assignment.option->full_name() == "config")
            config::read_config_file(config::expand_home(assignment.value.get<std::string>()), options, record);
        line.typed.insert(assignment.option->full_name());
    }
    config::settle_shared_keys(assignments, options);
    config::apply(assignments, record);
    const Presence presence(command, record, record.errors);
    check_required(command, options, record, presence);
    line.loaded.given = record.given;
    if (command.takes_config()) {
        line.loaded.notes = record.notes;
        config::validate(line.loaded, options, record.errors);
        line.log_level = line.loaded.config.logging.level;
    }
    check_relations(options, record.given, {""}, record.errors, line.loaded.notes);
    read_texts(line, record.errors);
    check_presence(line, presence, record.errors);
    record.errors.raise();
    collect_paths(options, record, line);
}

CommandLine help_on(const std::string& topic, bool all) {
    CommandLine line;
    line.command = Command::help, line.name = "help";
    line.help_topic = topic;
    line.help_all = all;
    return line;
}

/// `all`: those of two words, too, which belong to another command or to few users.
std::string overview(bool all) {
    std::string text =
        "Fine-tunes language models of the Llama family with (Q)LoRA.\n"
        "Usage: unsloth-train [train] FILE.json [--section.key VALUE …] | COMMAND …\n\nCommands\n";
    for (const auto& command : commands()) {
        constexpr std::size_t width = 14;
        if (!all && command.name.find(' ') != std::string::npos) continue;
        text += config::wrapped_help("  " + command.name + std::string(width - command.name.size(), ' '),
                                     command.summary, width + 2);
    }
    if (!all) return text;
    return text + "  help          List the options of a command: unsloth-train help COMMAND.\n" +
           "                --version prints the version.\n";
}

constexpr const char* how_to_write =
    "\nWhere a key is unique, --key works for --section.key; dashes may replace underscores.\n"
    "A flag with [BOOL] alone means true. Lists are JSON or comma-separated, maps are JSON.\n"
    "Flags win over the file.\n";

constexpr const char* exit_codes =
    "\nExit codes: 0 finished, 2 usage or configuration, 3 model, data or tokenizer, 4 runtime;\n"
    "            129, 130 and 143 stopped by SIGHUP, SIGINT and SIGTERM after saving;\n"
    "            of launch also 128 + the signal that ended a rank.\n";

/// The command that the arguments from `at` on name: of two words where one is like them, else of one.
std::string command_at(const std::vector<std::string>& arguments, std::size_t at) {
    const auto& known = commands();
    if (at + 1 < arguments.size()) {
        const std::string both = arguments[at] + " " + arguments[at + 1];
        if (std::any_of(known.begin(), known.end(), [&](const CommandInfo& command) {
                return command.name.find(' ') != std::string::npos && is_like(both, command.name);
            }))
            return both;
    }
    return arguments[at];
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
    if (arguments.empty())
        throw Error("option.nothing-to-do", "nothing to do",
                    "Try: unsloth-train --config FILE, or unsloth-train --help");
    const std::string& first = arguments.front();
    const bool names_command = !first.starts_with("-") && !names_config_file(first);
    const bool asks_all = contains(arguments, "--help-all");
    const bool asks_help = asks_all || contains(arguments, "--help") || contains(arguments, "-h");

    if (first == "--version" || first == "version") {
        CommandLine line;
        line.command = Command::version, line.name = "version";
        return line;
    }
    if (first == "help") {
        const auto topic =
            std::find_if(arguments.begin() + 1, arguments.end(), [](const auto& a) { return a[0] != '-'; });
        return help_on(
            topic == arguments.end() ? "" : command_at(arguments, static_cast<std::size_t>(topic - arguments.begin())),
            asks_all);
    }
    const CommandInfo& command = command_named(names_command ? command_at(arguments, 0) : "train");
    if (asks_help) return help_on(names_command ? command.name : "", asks_all);

    CommandLine line;
    line.command = command.command, line.name = command.name;
    const auto words = names_command ? 1 + std::count(command.name.begin(), command.name.end(), ' ') : 0;
    const std::vector<std::string> rest(arguments.begin() + words, arguments.end());
    if (line.command == Command::launch) {
        read_launch(command, rest, line);
    } else {
        read_arguments(command, line.command == Command::sweep ? take_axes(rest, line.sweep) : rest, line);
    }
    return line;
}

std::string help_text(const std::string& topic, bool all) {
    const CommandInfo& command = command_named(topic.empty() ? "train" : topic);
    CommandLine line;
    OptionSet options;
    declare_all_options(command, options, line);
    if (topic.empty() && !all)
        return cat(overview(false), "\nOptions most used; --help-all lists all, help COMMAND those of a command\n",
                   config::help_of_most_used(options));
    const std::string head =
        topic.empty() ? overview(true)
                      : cat(command.summary, "\n\n",
                            config::wrapped_help(cat("Usage: unsloth-train ", command.name, " "), command.usage, 7));
    return head + config::help_of_options(options) + (command.takes_config() ? how_to_write : "") + exit_codes;
}

}  // namespace unsloth::app
