#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/paths.h"

namespace unsloth::app {

bool run_plan(const CommandLine& line) {
    require_templates(line.loaded.config);
    return load_engine()->plan(line.loaded, line.plan);
}

}  // namespace unsloth::app
