#include "config/commands.h"

#include <algorithm>

#include "config/commands/declarations.h"
#include "config/option_table.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

void declare_nothing(OptionSet&, CommandLine&) {}

const ConfigUse no_config = {};
const ConfigUse whole_config = {
    {"model", "lora", "data", "training", "preference", "distill", "hardware", "distributed", "logging"}, {}};

/// What loading a model to answer or to judge reads, and what else the command does.
ConfigUse inference(const std::vector<std::string>& names, const std::vector<std::string>& but) {
    ConfigUse use = {{"model", "hardware", "training.max_memory_gib", "training.deterministic", "logging.level"},
                     {"model.compute_dtype", "hardware.weight_mantissa_bits"}};
    use.names.insert(use.names.end(), names.begin(), names.end());
    use.but.insert(use.but.end(), but.begin(), but.end());
    return use;
}

const ConfigUse of_generate = inference({"data.template", "data.chat_template_kwargs"}, {"model.max_seq_length"});
const ConfigUse of_score =
    inference({"data", "training.objective", "training.seed", "distill.temperature"}, {"data.packing", "data.shuffle"});
const ConfigUse of_evaluate =
    inference({"data", "training.objective", "training.seed", "training.per_device_train_batch_size"},
              {"data.packing", "data.shuffle"});
const ConfigUse of_data = {{"model.path", "model.adapter_name_or_path", "model.max_seq_length", "model.rope_scaling",
                            "data", "training.objective", "training.seed", "training.per_device_train_batch_size",
                            "training.gradient_accumulation_steps", "training.num_train_epochs", "training.max_steps",
                            "training.max_tokens_per_batch", "preference.rpo_alpha", "logging.level"},
                           {}};
const ConfigUse of_augment = {{"data.train_file", "data.val_size", "data.format", "data.columns", "data.text_unit",
                               "data.invalid_utf8", "data.skip_bad_rows", "training.seed", "logging.level"},
                              {}};
const ConfigUse of_bench = {{"model", "lora", "training", "hardware", "distributed", "logging"}, {}};
const ConfigUse of_doctor = {{"model.path", "training.output_dir", "hardware.device", "distributed.nccl",
                              "distributed.ddp_timeout", "logging.level"},
                             {}};

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
         "Train an adapter (or the whole model); the default command.", whole_config, declare_nothing},
        {Command::launch, "launch",
         "[--nproc_per_node N|auto] [--nnodes N --node_rank I --master_addr HOST] [--] [train] --config FILE …",
         "Start a process a GPU, all of which train one model.", no_config, declare_launch},
        {Command::config, "config",
         "[--config FILE] [--schema | --markdown | --man | --completion SHELL] [--section.key VALUE …]",
         "Print the effective configuration as JSON.", whole_config, declare_config},
        {Command::importing, "import-config", "FILE [--from axolotl|llamafactory|trl] [--out run.json] [--strict]",
         "Make a configuration from one of axolotl, LLaMA-Factory, TRL or Unsloth.", no_config, declare_import},
        {Command::data, "data", "--config FILE [--n N] [--json] [--color auto|always|never] [--section.key VALUE …]",
         "Show rows as the model will see them, and count what a run would train on.", of_data, declare_data_command},
        {Command::augment, "data augment",
         "--in FILE --out FILE [--val_size N --eval_out FILE] [--thesaurus FILE] [--section.key VALUE …]",
         "Write training rows with copies: synonyms, swapped and deleted words, back-translations.", of_augment,
         declare_augment},
        {Command::score, "score",
         "--model.path DIR [--model.adapter_name_or_path DIR] --data.train_file FILE --out FILE [--logits FILE] "
         "[--top_k N]",
         "Log-probabilities and losses of the rows of a file.", of_score, declare_score},
        {Command::generate, "generate",
         "--model.path DIR | --model.adapter_name_or_path DIR --prompt TEXT | --file FILE | --chat [--max_new_tokens "
         "N] "
         "[--temperature T]",
         "Answer prompts, with the likeliest tokens or with drawn ones.", of_generate, declare_generate},
        {Command::evaluate, "evaluate",
         "--model.path DIR [--model.adapter_name_or_path DIR] --data.eval_file FILE [--metric exact_match] "
         "[--answer_regex REGEX] "
         "[--json]",
         "Loss, perplexity and accuracy on rows, and how many generated answers are right.", of_evaluate,
         declare_evaluate},
        {Command::tokenize, "tokenize", "--tokenizer DIR [--template NAME] [--decode] < in.jsonl > out.jsonl",
         "Turn text or messages into ids, or ids into text.", no_config, declare_tokenize},
        {Command::inspect, "inspect", "DIR|FILE [--json]",
         "What a model or adapter folder or a GGUF file holds, and whether it is sound.", no_config, declare_inspect},
        {Command::init, "init", "--shape NAME --out DIR [--quantize nf4]", "Write a model with random weights.",
         no_config, declare_init},
        {Command::exporting, "export",
         "gguf --model.path DIR | --model.adapter_name_or_path DIR --out FILE.gguf [--type TYPE]",
         "Write a model or an adapter for llama.cpp.", no_config, declare_export},
        {Command::merge, "merge",
         "--model.adapter_name_or_path DIR --model.path DIR --out DIR [--dtype bf16|fp16|fp32|nf4] [--verify TEXT|FILE "
         "| "
         "--no_verify]",
         "Merge an adapter into its base: a model folder without adapter.", no_config, declare_merge},
        {Command::quantize, "quantize", "--model.path DIR --out DIR [--type nf4|fp4|int8]",
         "Write a model in 4 or 8 bit, as bitsandbytes does.", no_config, declare_quantize},
        {Command::bench, "bench", "step|ops|gemm|nf4|scaling|comm|generate|--check [--batch N] [--seq N] [--json]",
         "Measure speed, or check that it is what it was.", of_bench, declare_bench},
        {Command::tune, "tune", "--config FILE [--out FILE] [--batch N] [--seq N] [--seconds S]",
         "Measure which kernels serve a run's products fastest on this card.", of_bench, declare_tune},
        {Command::plan, "plan", "--config FILE [--gpu NAME|FILE] [--gpu_memory 24GiB] [--gpus N] [--svg FILE] [--json]",
         "What a run takes of a GPU's memory and of time, without a GPU.", whole_config, declare_plan},
        {Command::watch, "watch", "RUN [--once] [--interval SECONDS]",
         "Draw a run's losses and figures in the terminal.", no_config, declare_watch},
        {Command::compare, "compare", "RUN …",
         "Lay runs over each other: losses, figures, and the options that differ.", no_config, declare_compare},
        {Command::report, "report", "RUN [--out FILE | --svg FILE]",
         "Write a run's page: one HTML file with its curves and configuration.", no_config, declare_report},
        {Command::replay, "replay", "RUN/anomalies/step-N.json [--device DEVICE] [--json]",
         "Run a step that was not finite, or a spike, again: which layer, which row.", no_config, declare_replay},
        {Command::doctor, "doctor", "[--config FILE] [--json]",
         "Look at this machine: what is missing, what is scarce, and what to say in a report.", of_doctor,
         declare_doctor},
        {Command::explain, "explain", "[ID] [--markdown]",
         "Explain the id of an error, as in error[data.empty]; without one, list all ids.", no_config, declare_explain},
    };
    return all;
}

bool names_config_file(const std::string& argument) {
    return argument.ends_with(".json") || argument.ends_with(".yaml") || argument.ends_with(".yml");
}

const CommandInfo& command_named(const std::string& name) {
    std::vector<std::string> names = {"help"};
    for (const auto& command : commands()) {
        if (command.name == name) return command;
        names.push_back(command.name);
    }
    const std::string advice = did_you_mean(nearest(name, names));
    throw Error("command.unknown", cat("unknown command '", name, "'"),
                name.find_first_of("./") != std::string::npos
                    ? "A configuration's name ends in .json, .yaml or .yml; --config FILE takes any."
                : advice.empty() ? "unsloth-train --help lists the commands."
                                 : advice);
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
        options.add("log_level", line.log_level, "Least level that is printed.").one_of(log_levels()).value("LEVEL");
    }
}

void declare_all_options(const CommandInfo& command, OptionSet& options, CommandLine& line) {
    declare_own_options(command, options, line);
    if (!command.takes_config()) return;
    declare_options(options, line.loaded.config);
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

}  // namespace unsloth::config
