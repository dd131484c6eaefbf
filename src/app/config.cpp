#include "app/commands.h"
#include "unsloth/config/load.h"

namespace unsloth::app {

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
        print(config::config_to_json(line.loaded.config));
    }
}

}  // namespace unsloth::app
