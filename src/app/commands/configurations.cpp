// What config and import-config take.
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"

namespace unsloth::app {

void declare_config(OptionSet& options, CommandLine& line) {
    options.add("schema", line.config.schema, "Print a JSON Schema of configuration files, for editors.");
    options.add("markdown", line.config.markdown, "Print the option reference, docs/options.md.");
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
    options.add("strict", import.strict,
                "Exit code 2, and no file, where something that changes training cannot be carried over.");
    options.add("json", import.json,
                "Print one JSON object instead: program, carried, notes, losses, aside (losses that do not change "
                "training) and config.");
}

}  // namespace unsloth::app
