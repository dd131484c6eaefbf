#include "config/commands.h"

#include <algorithm>

#include "config/commands/declarations.h"
#include "config/option_table.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

void declare_nothing(OptionSet&, CommandLine&) {}

}  // namespace

const std::vector<CommandInfo>& commands() {
    static const std::vector<CommandInfo> all = {
        {Command::train, "train", "--config FILE [--section.key VALUE …]",
         "Train an adapter (or the whole model); the default command.", true, declare_nothing},
        {Command::launch, "launch",
         "[--nproc_per_node N|auto] [--nnodes N --node_rank I --master_addr HOST] [--] [train] --config FILE …",
         "Start a process a GPU, all of which train one model.", false, declare_launch},
        {Command::config, "config",
         "[--config FILE] [--schema | --markdown | --man | --completion SHELL] [--section.key VALUE …]",
         "Print the effective configuration as JSON.", true, declare_config},
        {Command::importing, "import-config", "FILE [--from axolotl|llamafactory|trl] [--out run.json] [--strict]",
         "Make a configuration from one of axolotl, LLaMA-Factory, TRL or Unsloth.", false, declare_import},
        {Command::data, "data", "--config FILE [--n N] [--json] [--color auto|always|never] [--section.key VALUE …]",
         "Show rows as the model will see them, and count what a run would train on.", true, declare_data_command},
        {Command::augment, "data augment",
         "--in FILE --out FILE [--val_size N --eval_out FILE] [--thesaurus FILE] [--section.key VALUE …]",
         "Write training rows with copies: synonyms, swapped and deleted words, back-translations.", true,
         declare_augment},
        {Command::score, "score",
         "--model.path DIR [--model.adapter_name_or_path DIR] --data.train_file FILE --out FILE [--logits FILE] "
         "[--top_k N]",
         "Log-probabilities and losses of the rows of a file.", true, declare_score},
        {Command::generate, "generate",
         "--model.path DIR | --model.adapter_name_or_path DIR --prompt TEXT | --file FILE | --chat [--max_new_tokens "
         "N] "
         "[--temperature T]",
         "Answer prompts, with the likeliest tokens or with drawn ones.", true, declare_generate},
        {Command::evaluate, "evaluate",
         "--model.path DIR [--model.adapter_name_or_path DIR] --data.eval_file FILE [--metric exact_match] "
         "[--answer_regex REGEX] "
         "[--json]",
         "Loss, perplexity and accuracy on rows, and how many generated answers are right.", true, declare_evaluate},
        {Command::tokenize, "tokenize", "--tokenizer DIR [--template NAME] [--decode] < in.jsonl > out.jsonl",
         "Turn text or messages into ids, or ids into text.", false, declare_tokenize},
        {Command::inspect, "inspect", "DIR|FILE [--json]",
         "What a model or adapter folder or a GGUF file holds, and whether it is sound.", false, declare_inspect},
        {Command::init, "init", "--shape NAME --out DIR [--quantize nf4]", "Write a model with random weights.", false,
         declare_init},
        {Command::exporting, "export",
         "gguf --model.path DIR | --model.adapter_name_or_path DIR --out FILE.gguf [--type TYPE]",
         "Write a model or an adapter for llama.cpp.", false, declare_export},
        {Command::merge, "merge",
         "--model.adapter_name_or_path DIR --model.path DIR --out DIR [--dtype bf16|fp16|fp32|nf4] [--verify TEXT|FILE "
         "| "
         "--no_verify]",
         "Merge an adapter into its base: a model folder without adapter.", false, declare_merge},
        {Command::quantize, "quantize", "--model.path DIR --out DIR [--type nf4|fp4|int8]",
         "Write a model in 4 or 8 bit, as bitsandbytes does.", false, declare_quantize},
        {Command::bench, "bench", "step|ops|gemm|nf4|scaling|comm|generate|--check [--batch N] [--seq N] [--json]",
         "Measure speed, or check that it is what it was.", true, declare_bench},
        {Command::tune, "tune", "--config FILE [--out FILE] [--batch N] [--seq N] [--seconds S]",
         "Measure which kernels serve a run's products fastest on this card.", true, declare_tune},
        {Command::plan, "plan", "--config FILE [--gpu NAME|FILE] [--gpu_memory 24GiB] [--gpus N] [--svg FILE] [--json]",
         "What a run takes of a GPU's memory and of time, without a GPU.", true, declare_plan},
        {Command::watch, "watch", "RUN [--once] [--interval SECONDS]",
         "Draw a run's losses and figures in the terminal.", false, declare_watch},
        {Command::compare, "compare", "RUN …",
         "Lay runs over each other: losses, figures, and the options that differ.", false, declare_compare},
        {Command::report, "report", "RUN [--out FILE | --svg FILE]",
         "Write a run's page: one HTML file with its curves and configuration.", false, declare_report},
        {Command::replay, "replay", "RUN/anomalies/step-N.json [--device DEVICE] [--json]",
         "Run a step that was not finite, or a spike, again: which layer, which row.", false, declare_replay},
        {Command::doctor, "doctor", "[--config FILE] [--json]",
         "Look at this machine: what is missing, what is scarce, and what to say in a report.", true, declare_doctor},
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
    throw usage_error(cat("unknown command '", name, "'"),
                      name.find_first_of("./") != std::string::npos
                          ? "A configuration's name ends in .json, .yaml or .yml; --config FILE takes any."
                      : advice.empty() ? "unsloth-train --help lists the commands."
                                       : advice);
}

void declare_own_options(const CommandInfo& command, OptionSet& options, CommandLine& line) {
    options.section("", command.name, command.summary);
    command.declare(options, line);
    if (command.takes_config) {
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
