// What new, config and import-config take.
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"

namespace unsloth::app {

void declare_force(OptionSet& options, CommandLine& line) {
    options.add("force", line.force, "Replace the file to write if it exists.")
        .suggested_for({"overwrite", "overwrite_output_dir"});
}

void declare_new(OptionSet& options, CommandLine& line) {
    NewRequest& fresh = line.fresh;
    const std::string asked = " At a terminal, new asks for it.";
    options.add("model", fresh.model, "Model to train: a folder or a hub id, as model.path." + asked)
        .path("PATH")
        .alias("model", "path")
        .suggested_for({"path", "model_name_or_path", "base_model"});
    options.add("data", fresh.data, "Rows to train on, as data.train_file." + asked)
        .path("FILE")
        .alias("data", "train_file")
        .suggested_for({"train_file", "dataset"});
    options
        .add("gpu", fresh.gpu,
             "What the configuration must fit: here (this machine), cpu, the memory of a card such as 24GiB, or its "
             "name as in plan." +
                 asked)
        .value("here|cpu|SIZE|NAME")
        .suggested_for({"gpu_memory", "card", "device"});
    options.add("out", fresh.out, "Configuration file to write.").output("FILE");
    declare_force(options, line);
}

void declare_config(OptionSet& options, CommandLine& line) {
    options.add("schema", line.config.schema, "Print a JSON Schema of configuration files, for editors.");
    options.add("markdown", line.config.markdown, "Print the reference of options and commands, as in docs/reference.");
    options.add("man", line.config.man, "Print the manual page, unsloth-train.1.");
    options.add("completion", line.config.completion, "Print a script that completes command lines in this shell.")
        .one_of({"", "bash", "zsh", "fish"})
        .value("bash|zsh|fish");
}

void declare_import(OptionSet& options, CommandLine& line) {
    ImportRequest& import = line.importing;
    options
        .add("path", import.path,
             "YAML or JSON file of axolotl, LLaMA-Factory, ms-swift or Unsloth Studio, or of the arguments of a TRL or "
             "Unsloth script.")
        .path("FILE")
        .argument()
        .must_be_given();
    options
        .add_choice("from", import.from,
                    {{"auto", import::PeerProgram::automatic},
                     {"axolotl", import::PeerProgram::axolotl},
                     {"llamafactory", import::PeerProgram::llama_factory},
                     {"trl", import::PeerProgram::trl},
                     {"swift", import::PeerProgram::swift},
                     {"studio", import::PeerProgram::studio}},
                    "Whose configuration it is; trl: Unsloth's scripts too. auto: by the names of its fields.")
        .synonym("unsloth", "trl")
        .synonym("ms-swift", "swift")
        .synonym("llama-factory", "llamafactory")
        .synonym("llama_factory", "llamafactory");
    options.add("out", import.out, "File to write; empty: standard output.").output("FILE");
    declare_force(options, line);
    options.add("strict", import.strict,
                "Exit code 2, and no file, where something that changes training cannot be carried over.");
    options.add("json", import.json,
                "Print one JSON object instead: program, carried, notes, losses, aside (losses that do not change "
                "training) and config.");
}

}  // namespace unsloth::app
