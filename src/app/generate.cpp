#include "app/commands.h"
#include "app/engine_loader.h"

namespace unsloth::app {

void run_generate(const config::CommandLine& line) {
    load_engine(line.loaded.config)->generate(line.loaded, line.generate);
}

}  // namespace unsloth::app
