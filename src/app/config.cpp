#include "app/commands.h"
#include "unsloth/config/load.h"

namespace unsloth::app {

void run_config(const config::CommandLine& line) {
    if (line.config.schema) {
        print(config::config_schema());
    } else if (line.config.markdown) {
        print(config::options_markdown());
    } else if (line.config.man) {
        print(config::manual_page());
    } else if (!line.config.completion.empty()) {
        print(config::shell_completion(line.config.completion));
    } else {
        print(config::config_to_json(line.loaded.config));
    }
}

}  // namespace unsloth::app
