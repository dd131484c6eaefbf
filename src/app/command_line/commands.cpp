#include "app/command_line/commands.h"

#include <algorithm>
#include <map>

#include "app/commands.h"
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"
#include "unsloth/core/error.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/suggest.h"

namespace unsloth::app {
namespace {

void declare_nothing(OptionSet&, CommandLine&) {}

using Arguments = std::vector<std::string>;

// Commands that do not read the arguments again, as CommandInfo::run.
template <int (*work)(const CommandLine&)>
int returning(const CommandLine& line, const Arguments&) {
    return work(line);
}
template <void (*work)(const CommandLine&)>
int succeeding(const CommandLine& line, const Arguments&) {
    return work(line), 0;
}
/// `failure`: the exit code where the work ends with false.
template <bool (*work)(const CommandLine&), ErrorKind failure>
int failing(const CommandLine& line, const Arguments&) {
    return work(line) ? 0 : static_cast<int>(failure);
}

const ConfigUse no_config = {};
const ConfigUse whole_config = {
    {"model", "lora", "data", "training", "preference", "distill", "grpo", "hardware", "distributed", "logging"}, {}};

/// What loading a model to answer or to judge reads, and what else the command does.
ConfigUse inference(const std::vector<std::string>& names, const std::vector<std::string>& but) {
    ConfigUse use = {{"model", "hardware", "training.max_memory_gib", "training.deterministic", "logging.level"},
                     {"model.compute_dtype", "hardware.weight_mantissa_bits"}};
    use.names.insert(use.names.end(), names.begin(), names.end());
    use.but.insert(use.but.end(), but.begin(), but.end());
    return use;
}

const ConfigUse of_serve =
    inference({"data.template", "data.chat_template_kwargs", "data.image_max_pixels"}, {"model.max_seq_length"});
const ConfigUse of_generate =
    inference({"data.template", "data.chat_template_kwargs", "data.image_root", "data.image_max_pixels"},
              {"model.max_seq_length"});
const ConfigUse of_score =
    inference({"data", "training.objective", "training.seed", "distill.temperature"}, {"data.packing", "data.shuffle"});
const ConfigUse of_evaluate =
    inference({"data", "training.objective", "training.seed", "training.per_device_train_batch_size"},
              {"data.packing", "data.shuffle"});
const ConfigUse of_prune =
    inference({"data", "training.per_device_train_batch_size"},
              {"data.train_file", "data.train_split", "data.datasets", "data.eval_file", "data.eval_split",
               "data.eval_files", "data.val_size", "data.packing", "data.shuffle", "model.rope_scaling"});
const ConfigUse of_data = {
    {"model.path", "model.adapter_name_or_path", "model.max_seq_length", "model.rope_scaling", "model.special_tokens",
     "data", "training.objective", "training.seed", "training.per_device_train_batch_size",
     "training.gradient_accumulation_steps", "training.num_train_epochs", "training.max_steps",
     "training.max_tokens_per_batch", "preference.rpo_alpha", "preference.max_prompt_length",
     "preference.truncation_mode", "logging.level"},
    {}};
const ConfigUse of_augment = {
    {"data.train_file", "data.train_split", "data.val_size", "data.format", "data.columns", "data.text_unit",
     "data.invalid_utf8", "data.skip_invalid", "training.seed", "logging.level"},
    {}};
const ConfigUse of_tune = {{"model", "lora", "training", "hardware", "distributed", "logging"}, {}};
const ConfigUse of_bench = {{"model", "lora", "data", "training", "grpo", "hardware", "distributed", "logging"}, {}};
const ConfigUse of_doctor = {{"model.path", "training.output_dir", "hardware.device", "distributed.nccl",
                              "distributed.ddp_timeout", "logging.level"},
                             {}};

int run_bench_command(const CommandLine& line, const Arguments& arguments) {
    return run_bench(line, arguments), 0;
}

bool is_among(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool ConfigUse::reads(const Option& option) const {
    const bool named = is_among(names, option.section) || is_among(names, option.full_name());
    return named && !is_among(but, option.full_name());
}

std::string ConfigUse::in_words() const {
    std::string text;
    for (const std::string& name : names) {
        text += cat(text.empty() ? "`" : ", `", name, "`");
        std::string without;
        for (const std::string& option : but)
            if (option.starts_with(name + ".")) without += cat(without.empty() ? " without `" : " and `", option, "`");
        text += without;
    }
    return text;
}

const std::vector<CommandInfo>& commands() {
    static const std::vector<CommandInfo> all = {
        {Command::train, "train", "--config FILE [--section.key VALUE …]",
         "Train an adapter (or the whole model); the default command.", whole_config, declare_nothing, run_train},
        {Command::new_config, "new", "[--model PATH] [--data FILE] [--gpu here|cpu|SIZE|NAME] [--out FILE] [--force]",
         "Write a configuration that fits a model, rows and a card.", no_config, declare_new, succeeding<run_new>,
         /*alone=*/true},
        {Command::launch, "launch",
         "[--nproc_per_node N|auto] [--nnodes N --node_rank I --master_addr HOST] [--] [train] --config FILE …",
         "Start one process per GPU to train one model.", no_config, declare_launch, returning<run_launch>},
        {Command::config, "config",
         "[--config FILE] [--schema | --markdown | --man | --completion SHELL] [--section.key VALUE …]",
         "Print the effective configuration as JSON.", whole_config, declare_config, succeeding<run_config>},
        {Command::importing, "import-config",
         "FILE [--from axolotl|llamafactory|trl|swift|studio] [--out run.json] [--force] [--strict] "
         "[--json]",
         "Convert a configuration of another program, such as axolotl.", no_config, declare_import,
         failing<run_import, ErrorKind::usage>},
        {Command::data, "data", "--config FILE [--n N] [--json] [--color auto|always|never] [--section.key VALUE …]",
         "Show examples as the model sees them, and count their labels.", of_data, declare_data_command,
         failing<run_data, ErrorKind::input>},
        {Command::augment, "data augment",
         "--in FILE --out FILE [--val_size N --eval_out FILE] [--thesaurus FILE] [--section.key VALUE …]",
         "Write augmented training rows: synonyms, swapped and deleted words, back-translations.", of_augment,
         declare_augment, succeeding<run_augment>, /*alone=*/true},
        {Command::score, "score",
         "--model.path DIR [--model.adapter_name_or_path DIR] --data.train_file FILE --out FILE [--logits FILE] "
         "[--top_k N]",
         "Compute log-probabilities and losses of a file of examples.", of_score, declare_score, succeeding<run_score>,
         /*alone=*/true},
        {Command::generate, "generate",
         "--model.path DIR | --model.adapter_name_or_path DIR --prompt TEXT | --file FILE | --chat [--max_new_tokens "
         "N] "
         "[--temperature T]",
         "Generate completions (greedy or sampled).", of_generate, declare_generate, succeeding<run_generate>,
         /*alone=*/true},
        {Command::serve, "serve",
         "--model.path DIR [--adapter NAME=DIR …] [--adapter_root DIR] [--watch RUN] [--host ADDRESS] [--port N] "
         "[--api_key_file FILE]",
         "Answer OpenAI's API over HTTP, and gRPC.", of_serve, declare_serve, succeeding<run_serve>, /*alone=*/true},
        {Command::evaluate, "evaluate",
         "--model.path DIR [--model.adapter_name_or_path DIR] --data.eval_file FILE [--metric exact_match] "
         "[--answer_regex REGEX] "
         "[--json]",
         "Compute loss and accuracy, and score generated answers.", of_evaluate, declare_evaluate,
         succeeding<run_evaluate>, /*alone=*/true},
        {Command::tokenize, "tokenize", "--tokenizer DIR [--template NAME] [--decode] < in.jsonl > out.jsonl",
         "Convert text or messages to token ids, or ids to text.", no_config, declare_tokenize,
         succeeding<run_tokenize>},
        {Command::inspect, "inspect", "DIR|FILE [--json]", "Show and verify a model or adapter folder, or a GGUF file.",
         no_config, declare_inspect, failing<run_inspect, ErrorKind::input>},
        {Command::init, "init", "--shape NAME --out DIR [--quantize nf4]", "Write a model with random weights.",
         no_config, declare_init, succeeding<run_init>, /*alone=*/true},
        {Command::exporting, "export",
         "gguf --model.path DIR | --model.adapter_name_or_path DIR --out FILE.gguf [--type TYPE]",
         "Export a model or an adapter for llama.cpp.", no_config, declare_export, succeeding<run_export>,
         /*alone=*/true},
        {Command::merge, "merge",
         "--model.adapter_name_or_path DIR --model.path DIR --out DIR [--dtype bf16|fp16|fp32|nf4] [--verify TEXT|FILE "
         "| "
         "--no_verify]",
         "Merge an adapter into its base model.", no_config, declare_merge, succeeding<run_merge>, /*alone=*/true},
        {Command::quantize, "quantize", "--model.path DIR --out DIR [--type nf4|fp4|int8]",
         "Quantize a model to 4 or 8 bit, as bitsandbytes does.", no_config, declare_quantize, succeeding<run_quantize>,
         /*alone=*/true},
        {Command::prune, "prune",
         "--model.path DIR --out DIR --calibration FILE [--layers N [--method block_influence|last|scan]] "
         "[--intermediate K] [--experts K] [--wanda 0.5|2:4]",
         "Remove layers, neurons, experts or weights that matter least.", of_prune, declare_prune,
         succeeding<run_prune>, /*alone=*/true},
        {Command::bench, "bench", "step|ops|gemm|nf4|scaling|comm|generate|grpo|--check [--batch N] [--seq N] [--json]",
         "Measure speed, or check it against regression thresholds.", of_bench, declare_bench, run_bench_command},
        {Command::tune, "tune", "--config FILE [--out FILE] [--batch N] [--seq N] [--seconds S]",
         "Find the fastest kernels for a run's matmuls on this GPU.", of_tune, declare_tune, succeeding<run_tune>,
         /*alone=*/true},
        {Command::plan, "plan", "--config FILE [--gpu NAME|FILE] [--gpu_memory 24GiB] [--gpus N] [--svg FILE] [--json]",
         "Estimate memory and speed of a run for any GPU.", whole_config, declare_plan,
         failing<run_plan, ErrorKind::runtime>},
        {Command::sweep, "sweep",
         "--config FILE --grid 'learning_rate=1e-4,2e-4;r=8,16' | --learning_rate 1e-4,2e-4 … | --find_lr [--steps N]",
         "Try several settings of a run, and keep the best.", whole_config, declare_sweep, succeeding<run_sweep>,
         /*alone=*/true},
        {Command::watch, "watch", "RUN [--once] [--interval SECONDS]",
         "Plot a run's metrics in the terminal as it trains.", no_config, declare_watch, succeeding<run_watch>},
        {Command::compare, "compare", "RUN …", "Compare runs: losses, metrics, and the options that differ.", no_config,
         declare_compare, succeeding<run_compare>},
        {Command::report, "report", "RUN [--out FILE | --svg FILE]", "Write a run's report as one HTML file.",
         no_config, declare_report, succeeding<run_report>},
        {Command::push, "push", "DIR --repo ORG/NAME [--private false] [--branch main] [--message TEXT]",
         "Upload a model or adapter folder to the Hugging Face hub.", no_config, declare_push, succeeding<run_push>,
         /*alone=*/true},
        {Command::replay, "replay", "RUN/anomalies/step-N.json [--device DEVICE] [--json]",
         "Rerun a non-finite step or a spike to find its cause.", no_config, declare_replay, succeeding<run_replay>,
         /*alone=*/true},
        {Command::doctor, "doctor", "[--config FILE] [--json | --report]",
         "Check this machine, and report what is missing or scarce.", of_doctor, declare_doctor,
         failing<run_doctor, ErrorKind::runtime>},
        {Command::explain, "explain", "[ID] [--markdown]",
         "Explain the id of an error (such as data.empty), or list all.", no_config, declare_explain,
         succeeding<run_explain>},
        {Command::probe_grpo, "probe grpo", "< in.jsonl > out.jsonl",
         "Compute policy losses, gradients and advantages of given numbers, without a model.", no_config,
         declare_nothing, succeeding<run_probe_grpo>},
    };
    return all;
}

bool names_config_file(const std::string& argument) {
    return argument.ends_with(".json") || argument.ends_with(".yaml") || argument.ends_with(".yml");
}

/// What is meant by the commands of other programs.
std::string advice_on_foreign(const std::string& name) {
    static const std::map<std::string, const char*> known = {
        {"resume", "The command of a run resumes it with --resume_from_checkpoint auto."},
        {"finetune", "Without a command, the program trains: unsloth-train run.json"},
        {"fine-tune", "Without a command, the program trains: unsloth-train run.json"},
        {"sft", "Without a command, the program trains: unsloth-train run.json"},
        {"chat", "unsloth-train generate --chat talks with a model."},
        {"inference", "unsloth-train generate completes prompts."},
        {"predict", "unsloth-train generate completes prompts."},
        {"eval", "unsloth-train evaluate measures loss and correct completions."},
        {"upload", "unsloth-train push uploads a folder to the hub."},
        {"download", "unsloth-train inspect ORG/NAME downloads a model."},
        {"convert", "unsloth-train export gguf, merge and quantize write a model in another form."}};
    const auto found = known.find(name);
    return found == known.end() ? "" : found->second;
}

const CommandInfo& command_named(const std::string& name) {
    std::vector<std::string> names = {"help"}, longer;
    for (const auto& command : commands()) {
        if (command.name == name) return command;
        names.push_back(command.name);
        if (command.name.starts_with(name + " ")) longer.push_back(command.name);
    }
    const bool is_path = name.find_first_of("./") != std::string::npos;
    std::string advice = advice_on_foreign(name);
    if (advice.empty())
        advice = is_path ? nearest_path(name) : did_you_mean(longer.empty() ? nearest(name, names) : longer);
    throw Error("command.unknown", cat("unknown command '", name, "'"),
                !advice.empty() ? advice
                : is_path       ? "A configuration's name ends in .json, .yaml or .yml; --config FILE takes any."
                                : "unsloth-train --help lists the commands.");
}

void declare_own_options(const CommandInfo& command, OptionSet& options, CommandLine& line) {
    options.section("", command.name, command.summary);
    command.declare(options, line);
    if (command.takes_config()) {
        options
            .add("config", line.config_file,
                 "JSON or YAML file of options; flags win over it. A name that ends in .json, .yaml or .yml needs no "
                 "--config.")
            .path("FILE")
            .or_bare(names_config_file)
            .suggested_for({"config_file", "cfg", "conf"});
    } else if (command.command != Command::launch) {  // its level is the ranks'
        options.add("log_level", line.log_level, "Lowest log level that is printed.")
            .one_of(config::log_levels())
            .value("LEVEL");
    }
}

void declare_all_options(const CommandInfo& command, OptionSet& options, CommandLine& line) {
    declare_own_options(command, options, line);
    if (!command.takes_config()) return;
    config::declare_options(options, line.loaded.config);
    options.mark_unread([&](const Option& option) { return !option.section.empty() && !command.use.reads(option); });
}

std::string advice_on_foreign_option(const std::string& name) {
    std::string owners;
    for (const auto& command : commands()) {
        CommandLine unused;
        OptionSet own;
        declare_own_options(command, own, unused);
        const std::vector<std::string> meant = own.suggestions(name);
        const bool known = std::any_of(own.options().begin(), own.options().end(), [&](const Option& option) {
            const auto& others = option.other_names;
            return option.key == name || std::find(others.begin(), others.end(), name) != others.end();
        });
        if (known) owners += cat(owners.empty() ? "" : ", ", command.name, " (--", meant.front(), ")");
    }
    return owners.empty() ? "" : cat("Options of that name belong to other commands: ", owners, ".");
}

}  // namespace unsloth::app
