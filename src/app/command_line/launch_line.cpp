#include "app/command_line/launch_line.h"

#include <algorithm>

#include "unsloth/config/option_table.h"
#include "unsloth/config/parse.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::app {
namespace {

void check_machines(const LaunchRequest& launch, const ParseRecord& record) {
    const auto given = [&](const char* name) { return record.given.count(name) != 0; };
    if (launch.node_rank >= launch.nnodes)
        throw Error("option.out-of-range", cat("--node_rank ", launch.node_rank, " of --nnodes ", launch.nnodes,
                                               ": machines are counted from 0"));
    if (launch.nnodes == 1) return;
    for (const char* name : {"nproc_per_node", "node_rank", "master_addr"})
        if (!given(name))
            throw Error("option.missing", cat("several machines (--nnodes ", launch.nnodes, ") need --", name),
                        "On each machine: --nnodes N --node_rank I --master_addr HOST-OF-MACHINE-0 "
                        "--nproc_per_node P; all must have the same P.");
    if (launch.nproc_per_node == "auto")
        throw Error("option.missing",
                    "several machines need --nproc_per_node as a number, which must be the same on all of them");
    if (launch.max_restarts > 0)
        throw Error("option.unsupported",
                    cat("--max_restarts ", launch.max_restarts, " with --nnodes ", launch.nnodes,
                        ": the machines would not agree on when to restart"),
                    "torchrun --no-python has a meeting place for that; or start all machines again by hand.");
}

void check_processes(const LaunchRequest& launch) {
    const std::string& text = launch.nproc_per_node;
    const bool number = !text.empty() && text.size() < 6 &&
                        std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
    if (text != "auto" && (!number || std::stoi(text) < 1))
        throw Error("option.invalid-value",
                    cat("--nproc_per_node: expected a number of processes from 1, or auto, found '", text, "'"));
}

/// Without -- a misspelt option of launch's would be taken for one of the ranks'.
void check_border(const OptionSet& own, const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments) {
        const auto name = config::flag_name(argument);
        if (name && own.find_flag(*name))
            throw Error("option.misplaced", cat(argument, " is an option of launch, but follows one of the ranks'"),
                        "Options of launch come first.");
    }
    const auto first = arguments.empty() ? std::nullopt : config::flag_name(arguments.front());
    if (!first) return;
    CommandLine unused;
    OptionSet ranks;
    declare_own_options(command_named("train"), ranks, unused);
    config::declare_options(ranks, unused.loaded.config);
    if (ranks.find_flag(*first)) return;
    const std::string advice = did_you_mean(own.suggestions(*first), "--");
    if (!advice.empty()) throw Error("option.unknown", cat("unknown option ", arguments.front()), advice);
}

void read_ranks_line(CommandLine& line) {
    const CommandLine ranks = parse_command_line(line.launch.arguments);
    constexpr Command sensible[] = {Command::train, Command::bench, Command::config, Command::doctor};
    if (std::find(std::begin(sensible), std::end(sensible), ranks.command) == std::end(sensible))
        throw Error("command.one-process", cat("launch starts ranks of train; ", ranks.name, " runs in one process"),
                    cat("Write: unsloth-train ", ranks.name, " …"));
    line.launch.follow(ranks.loaded.config);
    line.log_level = ranks.log_level;
}

}  // namespace

void LaunchRequest::follow(const Config& ranks) {
    device = ranks.hardware.device;
    save_grace = ranks.training.save_grace_seconds;
    ddp_timeout = ranks.distributed.ddp_timeout;
}

void read_launch(const CommandInfo& command, const std::vector<std::string>& arguments, CommandLine& line) {
    OptionSet own;
    declare_own_options(command, own, line);
    ParseRecord record{.advice_on_flag = advice_on_foreign_option};
    std::size_t used = 0;
    config::apply(config::parse_leading_flags(arguments, own, record, used), record);
    record.errors.raise();
    const bool separated = used < arguments.size() && arguments[used] == "--";
    line.launch.arguments.assign(arguments.begin() + static_cast<std::ptrdiff_t>(used) + separated, arguments.end());

    check_processes(line.launch);
    check_machines(line.launch, record);
    if (!line.launch.program.empty()) return;
    if (!separated) check_border(own, line.launch.arguments);
    if (line.launch.arguments.empty())
        throw Error("option.nothing-to-do", "launch needs the ranks' command line",
                    "For instance: unsloth-train launch --nproc_per_node 4 --config run.json");
    read_ranks_line(line);
}

}  // namespace unsloth::app
