#include "app/commands.h"
#include "app/engine_loader.h"

namespace unsloth::app {

void run_bench(const config::CommandLine& line) {
    load_engine()->bench(line.loaded, line.bench);
}

}  // namespace unsloth::app
