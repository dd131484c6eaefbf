#include "app/commands.h"
#include "app/engine_loader.h"

namespace unsloth::app {

bool run_plan(const CommandLine& line) {
    return load_engine()->plan(line.loaded, line.plan);
}

}  // namespace unsloth::app
