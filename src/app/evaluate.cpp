#include "app/as_trained.h"
#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/paths.h"

namespace unsloth::app {

void run_evaluate(const CommandLine& given) {
    CommandLine line = given;
    take_from_run(line);
    require_inputs(line);
    load_engine(line.loaded.config)->evaluate(line.loaded, line.evaluate);
}

}  // namespace unsloth::app
