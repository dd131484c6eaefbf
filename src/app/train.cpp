#include "app/commands.h"
#include "app/engine_loader.h"
#include "unsloth/core/interrupt.h"

namespace unsloth::app {

void run_train(const config::CommandLine& line) {
    const auto engine = load_engine(line.loaded.config);
    install_interrupt_handlers();
    engine->train(line.loaded);
}

}  // namespace unsloth::app
