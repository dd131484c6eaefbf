// unsloth-train: reads the command line, runs one command, and turns what went wrong into a message and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <ios>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "app/build_facts.h"
#include "app/command_line/command_line.h"
#include "app/command_line/commands.h"
#include "app/commands.h"
#include "app/paths.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/lost_map.h"
#include "unsloth/core/version.h"

namespace unsloth::app {
namespace {

int code_of(ErrorKind kind) {
    return static_cast<int>(kind);
}

/// The version, and a line for each fact that the build knows.
std::string version_text() {
    const BuildFacts facts = build_facts();
    std::string text = cat("unsloth-train ", version, "\n");
    for (const auto& [name, value] : {std::pair{"commit", facts.commit},
                                      {"build", facts.type},
                                      {"compiler", facts.compiler},
                                      {"LibTorch", facts.torch},
                                      {"CUDA", facts.cuda},
                                      {"architectures", facts.architectures}})
        if (*value != '\0') text += cat("  ", name, std::string(15 - std::string(name).size(), ' '), value, "\n");
    return text;
}

/// What a launcher says of this process' number among others; 1: nothing. Of Slurm a step's: a batch script that
/// is no step has SLURM_NTASKS too.
int processes_of_launcher() {
    for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"})
        if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
            return std::max(std::atoi(value), 1);
    return 1;
}

/// Ranks would each do the whole work of a command that runs in one process, and write the same files.
void refuse_several_ranks(const CommandInfo& command, const CommandLine& line) {
    const int processes = processes_of_launcher();
    const bool checks = line.command == Command::bench && line.bench.check;
    if (processes == 1 || (!checks && !command.alone)) return;
    throw Error("command.one-process",
                cat(line.name, checks ? " --check" : "", " runs in one process, and a launcher started ", processes),
                cat("Write: unsloth-train ", line.name,
                    " … without torchrun, srun or mpirun. If none is at work: unset WORLD_SIZE RANK"));
}

int run(const CommandLine& line, const std::vector<std::string>& arguments) {
    if (line.command == Command::help) return print(help_text(line.help_topic, line.help_all)), 0;
    if (line.command == Command::version) return print(version_text()), 0;
    const CommandInfo& command = command_named(line.name);
    refuse_several_ranks(command, line);
    log::set_level(log::parse_level(line.log_level));
    if (line.command != Command::train)  // which says them once for all ranks
        for (const auto& note : line.loaded.notes) log::info(note);
    require_outputs(line);
    return command.run(line, arguments);
}

// Libraries put stack traces after the first line; those who ask for detail get them.
std::string brief(const char* what) {
    const std::string text = what;
    const auto end = text.find('\n');
    if (end == std::string::npos || log::level() == log::Level::debug) return text;
    return text.substr(0, end) + "\n  --log_level debug shows more.";
}

int run(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments);
    const int code = run(line, arguments);
    // A run's result is its folder: its output need not be read.
    if (line.command != Command::train && line.command != Command::launch) flush_output();
    return code;
}

int guarded(const std::vector<std::string>& arguments) {
    try {
        return run(arguments);
    } catch (const Error& failure) {
        log::last_words(error_line(failure.id(), failure.what()));
        return code_of(failure.kind());
    } catch (const Interrupted& stopped) {
        log::last_words(stopped.what());
        return stopped.exit_code();
    } catch (const std::ios_base::failure& failure) {
        end_unread(failure);
    } catch (const CheckError& failure) {
        log::last_words(cat("internal error: ", failure.what(),
                            "\n  This is a bug in unsloth-train. Please report it with the output of `unsloth-train "
                            "doctor --report`."));
    } catch (const std::filesystem::filesystem_error& failure) {
        log::last_words(error_line("disk.failed", cat(failure.path1().string(), ": ", failure.code().message())));
    } catch (const std::bad_alloc&) {
        log::last_words(error_line("memory.host-full", "out of host memory"));
    } catch (const std::exception& failure) {
        log::last_words(error_line("library.failed", brief(failure.what())));
    }
    return code_of(ErrorKind::runtime);
}

/// Of 0, 1 and 2 those that the caller closed (`2>&-`) refuse what is written: a file opened later would take the
/// number, and get the log's lines.
void occupy_closed_streams() {
    for (const auto& [fd, mode] :
         {std::pair{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_RDONLY}})
        if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", mode);  // takes the lowest number that is free
}

}  // namespace
}  // namespace unsloth::app

int main(int argc, char** argv) {
    unsloth::app::occupy_closed_streams();
    std::signal(SIGXFSZ, SIG_IGN);  // a file over the user's limit is then a write that fails, and that has words
    std::signal(SIGPIPE, SIG_IGN);  // a log without a reader ends nothing; for results see end_unread()
    unsloth::end_cleanly_on_lost_maps();
    unsloth::app::guard_output();
    return unsloth::app::guarded({argv + 1, argv + argc});
}
