#include "app/bench_check.h"
#include "app/commands.h"
#include "app/engine_loader.h"

namespace unsloth::app {

void run_bench(const CommandLine& line, const std::vector<std::string>& arguments) {
    if (line.bench.check) return check_floors(line, arguments);
    load_engine(line.loaded.config)->bench(line.loaded, line.bench);
}

void run_tune(const CommandLine& line) {
    load_engine()->tune(line.loaded, line.tune);
}

}  // namespace unsloth::app
