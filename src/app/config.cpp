#include "app/commands.h"
#include "unsloth/config/load.h"

namespace unsloth::app {

void run_config(const CommandLine& line) {
    if (line.config.schema) {
        print(config_schema());
    } else if (line.config.markdown) {
        print(options_markdown());
    } else {
        print(config_to_json(line.loaded.config));
    }
}

}  // namespace unsloth::app
