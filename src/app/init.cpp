#include "app/commands.h"
#include "app/engine_loader.h"

namespace unsloth::app {

void run_init(const config::CommandLine& line) {
    load_engine()->init(line.init);
}

}  // namespace unsloth::app
