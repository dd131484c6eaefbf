#include "app/as_trained.h"
#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/paths.h"

namespace unsloth::app {

void run_serve(const CommandLine& given) {
    CommandLine line = given;
    take_from_run(line);
    require_inputs(line);
    load_engine(line.loaded.config)->serve(line.loaded, line.generate, line.serve);
}

}  // namespace unsloth::app
