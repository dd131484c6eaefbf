// What sweep takes.
#include "app/commands/declarations.h"

namespace unsloth::app {

void declare_sweep(OptionSet& options, CommandLine& line) {
    SweepRequest& sweep = line.sweep;
    options
        .add("grid", sweep.grid,
             "Options with the values to try, all combinations of them: 'learning_rate=1e-4,2e-4;r=8,16'. Values that "
             "are lists have brackets: 'target_modules=[q_proj,v_proj],all-linear'. A flag with several values, such "
             "as --learning_rate 1e-4,2e-4, says the same.")
        .value("AXES");
    options.add("find_lr", sweep.find_lr,
                "Instead, try eight learning rates around that of auto, for --steps steps each, and recommend one.");
    options.add("steps", sweep.steps, "Steps of each trial of --find_lr.").at_least(1).at_most(1e9);
    options.add("nproc_per_node", sweep.nproc_per_node, "Processes of each trial, as of launch.")
        .at_least(1)
        .at_most(1024);
}

}  // namespace unsloth::app
