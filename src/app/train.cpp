#include <cstdlib>

#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/machine/gpus.h"
#include "app/paths.h"
#include "app/upload.h"
#include "unsloth/config/device_map.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"

namespace unsloth::app {

namespace {

/// Whether a launcher started this process as one of several.
bool is_rank() {
    return std::getenv("WORLD_SIZE") != nullptr || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ||
           std::getenv("SLURM_PROCID") != nullptr;
}

/// Whether this process is the only one, or the first of several. The launchers' variables, in the engine's order.
bool leads() {
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"})
        if (const char* rank = std::getenv(name); rank != nullptr && *rank != '\0') return std::string(rank) == "0";
    return true;
}

}  // namespace

int run_train(const CommandLine& line, const std::vector<std::string>& arguments) {
    const config::Config& config = line.loaded.config;
    const auto visible = [] { return static_cast<int>(visible_gpus(find_gpus().gpus).size()); };
    if (const int processes = is_rank() ? 1 : config::processes_of(config, visible); processes > 1) {
        CommandLine launching = line;
        launching.launch.nproc_per_node = std::to_string(processes);
        launching.launch.follow(config);
        launching.launch.arguments = arguments;
        if (config.distributed.pp_size == 1)
            for (const std::string& word : {std::string("--distributed.pp_size"), std::to_string(processes)})
                launching.launch.arguments.push_back(word);
        log::info("model.device_map: ", processes, " GPUs have the layers in turn, a process each");
        return run_launch(launching);
    }
    install_interrupt_handlers();
    if (!is_rank()) require_inputs(line);  // ranks look together, so that none waits for the others' downloads
    const bool uploads = config.training.push_to_hub && leads();
    if (uploads) require_upload(config);
    const auto engine = load_engine(line.loaded.config);
    engine->train(line.loaded);
    return !uploads || config.training.max_steps == 0 || upload_result(config) ? 0 : not_uploaded;
}

}  // namespace unsloth::app
