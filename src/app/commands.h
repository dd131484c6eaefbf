// A function a subcommand; each runs its command to the end or throws.
#pragma once

#include <ios>

#include "app/command_line/command_line.h"

namespace unsloth::app {

/// The exit code. `arguments`, which `line` is read from, are those of the ranks where model.device_map names several
/// GPUs.
int run_train(const CommandLine& line, const std::vector<std::string>& arguments);
/// The exit code for all ranks together.
int run_launch(const CommandLine& line);
void run_new(const CommandLine& line);
void run_config(const CommandLine& line);
/// False when --strict is given and something is not carried over.
bool run_import(const CommandLine& line);
/// False when a run with this configuration would stop at its data.
bool run_data(const CommandLine& line);
void run_augment(const CommandLine& line);
void run_score(const CommandLine& line);
void run_generate(const CommandLine& line);
void run_serve(const CommandLine& line);
void run_evaluate(const CommandLine& line);
void run_tokenize(const CommandLine& line);
/// False when the folder was read but is not sound.
bool run_inspect(const CommandLine& line);
void run_init(const CommandLine& line);
void run_export(const CommandLine& line);
void run_merge(const CommandLine& line);
void run_quantize(const CommandLine& line);
void run_prune(const CommandLine& line);
/// `arguments`, which `line` is read from, hold for each row of --check.
void run_bench(const CommandLine& line, const std::vector<std::string>& arguments);
void run_tune(const CommandLine& line);
void run_sweep(const CommandLine& line);
void run_watch(const CommandLine& line);
void run_compare(const CommandLine& line);
void run_report(const CommandLine& line);
void run_push(const CommandLine& line);
/// False when nothing fits.
bool run_plan(const CommandLine& line);
void run_replay(const CommandLine& line);
/// False when something is broken.
bool run_doctor(const CommandLine& line);
void run_explain(const CommandLine& line);
void run_probe_grpo(const CommandLine& line);

/// Writes to stdout, through printable(), and flushes; std::ios_base::failure when it cannot be written (a full disk
/// under a redirection, a reader that left).
void print(const std::string& text);
/// The same for a text with colours, whose parts from outside went through printable() already.
void print_coloured(const std::string& text);
/// From here on a write to std::cout that fails throws std::ios_base::failure. Where stdout is a terminal, what is
/// written passes printable(): texts that a model or a tokenizer made, which a file or a pipe gets as they are.
void guard_output();
/// Writes what std::cout and stdout still hold; std::ios_base::failure as print() has it.
void flush_output();
/// After a failed write to stdout: where its reader left (`| head`), ends the process as SIGPIPE ends other filters,
/// without a word; otherwise says why it cannot be written.
void end_unread(const std::ios_base::failure& failure);

}  // namespace unsloth::app
