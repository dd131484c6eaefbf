#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/paths.h"
#include "unsloth/core/interrupt.h"

namespace unsloth::app {

void run_replay(const CommandLine& line) {
    install_interrupt_handlers("Stopping");
    require_inputs(line);
    load_engine()->replay(line.replay);
}

}  // namespace unsloth::app
