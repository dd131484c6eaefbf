// What launch, doctor and explain take: machines, the processes on them, and errors.
#include "app/commands/declarations.h"

namespace unsloth::app {

void declare_launch(OptionSet& options, CommandLine& line) {
    LaunchRequest& launch = line.launch;
    options
        .add("nproc_per_node", launch.nproc_per_node,
             "Processes to start on this machine; auto: one for each GPU that CUDA_VISIBLE_DEVICES shows.")
        .value("N|auto")
        .suggested_for({"nproc", "num_processes", "num_gpus", "gpus", "np"});
    options.add("nnodes", launch.nnodes, "Machines that train together; launch runs on each of them.")
        .at_least(1)
        .suggested_for({"num_machines", "nodes"});
    options.add("node_rank", launch.node_rank, "Which of the machines this is, from 0.")
        .at_least(0)
        .suggested_for({"machine_rank"});
    options
        .add("master_addr", launch.master_addr, "Host of machine 0, where all ranks meet; with one machine this one.")
        .value("HOST")
        .suggested_for({"main_process_ip", "master_address"});
    options.add("master_port", launch.master_port, "Port there; 0: a free one with one machine, 29500 with several.")
        .at_least(0)
        .at_most(65535)
        .suggested_for({"main_process_port"});
    options
        .add("max_restarts", launch.max_restarts,
             "Restart all ranks this many times after a failure, except after exit codes 2 and 3. They resume as "
             "training.resume_from_checkpoint says. For one machine only; use torchrun for several.")
        .at_least(0);
    options
        .add("grace_period", launch.grace_period,
             "Seconds that the other ranks have to stop by themselves after the first failure; then SIGTERM, and "
             "SIGKILL 10 s later.")
        .at_least(0);
    options.add("silent", launch.silent,
                "Show the output of the machine's first rank alone, as it is; of a rank that failed its last lines on "
                "stderr too.");
    options.add("prefix", launch.prefix,
                "Prefix of each line of a rank's output; {rank} and {local_rank} are replaced.");
    options.add("no_pin", launch.no_pin,
                "Leave the ranks' CPUs and memory to the kernel instead of keeping each on the NUMA node of its GPU.");
    options.add("program", launch.program, "Program to start instead of this one; what follows goes to it unchecked.")
        .path("PATH");
}

void declare_doctor(OptionSet& options, CommandLine& line) {
    options.add("json", line.doctor.json, "Print the findings as one JSON object.").not_with("report");
    options.add(
        "report", line.doctor.report,
        "Print one block to paste into a bug report: versions, GPUs, driver, libraries, memory and disks. Tokens, "
        "names of users and of the machine, and paths below home folders are hidden.");
}

void declare_explain(OptionSet& options, CommandLine& line) {
    options.add("id", line.explain.id, "Id of an error, as in error[data.empty]; empty: list all ids.")
        .value("ID")
        .argument();
    options.add("markdown", line.explain.markdown, "Print all ids as the table of docs/reference/errors.md.");
}

}  // namespace unsloth::app
