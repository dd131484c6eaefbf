#include <filesystem>

#include "app/commands.h"
#include "unsloth/config/auto_values.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/hf_config.h"

namespace unsloth::app {
namespace {

/// What a run takes for a learning rate that is left to it, where the model's description is on this machine.
void tell_learning_rate(const config::Config& config) {
    if (config.training.learning_rate || config.model.path.empty()) return;
    try {
        const auto folder = formats::find_model_path(config.model.path, formats::ModelFiles::all_but_weights);
        if (!folder || !std::filesystem::exists(*folder / "config.json")) return;
        log::info("learning_rate auto: ", config::learning_rate_rule(config, formats::read_model_spec(*folder)).reason);
    } catch (const Error& error) {  // the configuration is printed all the same
        log::warning("learning_rate auto: ", error.what());
    }
}

}  // namespace

void run_config(const CommandLine& line) {
    if (line.config.schema) {
        print(config::config_schema());
    } else if (line.config.markdown) {
        print(options_markdown());
    } else if (line.config.man) {
        print(manual_page());
    } else if (!line.config.completion.empty()) {
        print(shell_completion(line.config.completion));
    } else {
        tell_learning_rate(line.loaded.config);
        print(config::config_to_json(line.loaded.config));
    }
}

}  // namespace unsloth::app
