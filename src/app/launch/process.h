// Starting one rank.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "unsloth/core/open_file.h"

namespace unsloth::app {

enum class Output {
    piped,      ///< both streams come back through pipes
    inherited,  ///< both are this process'
    errors,     ///< stdout goes nowhere, stderr through a pipe
};

struct Program {
    std::string path;                      ///< with a slash, or looked up in PATH
    std::vector<std::string> arguments;    ///< argv, with the program's name
    std::vector<std::string> environment;  ///< "NAME=value"
    std::vector<int> kept;                 ///< descriptors that it inherits in addition to the standard ones
};

struct Pipe {
    Descriptor read, write;
};
/// runtime Error when there is no descriptor left.
Pipe make_pipe();

struct RunningProcess {
    pid_t pid = 0;
    Descriptor out, err;  ///< to read from, non-blocking; not open where the output is not piped
};

/// Starts the program in a process group of its own (a Ctrl-C reaches the launcher alone, which forwards it once), with
/// no input, with `signals` as its signal mask, and such that the kernel kills it when the calling thread ends in
/// whatever way. usage Error when the program cannot be executed, runtime Error when there can be no further process.
RunningProcess start_process(const Program& program, Output output, const sigset_t& signals);

}  // namespace unsloth::app
