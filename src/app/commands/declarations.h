// The options of single commands, for the table in app/command_line/commands.cpp.
#pragma once

#include "app/command_line/command_line.h"

namespace unsloth::app {

/// --adapter NAME=DIR …, of generate and of its measurement.
void declare_adapters(OptionSet& options, NamedFolders& adapters, std::string help);
/// What is decoded at a time, of generate and serve. `without_length`: what --max_model_len 0 means.
void declare_batches(OptionSet& options, GenerateRequest& generate, const std::string& without_length);
/// --force, of the commands that write files: without it they refuse one that exists.
void declare_force(OptionSet& options, CommandLine& line);
void declare_kv_cache_dtype(OptionSet& options, KvCacheDtype& dtype, const std::string& of);

void declare_launch(OptionSet& options, CommandLine& line);
void declare_new(OptionSet& options, CommandLine& line);
void declare_config(OptionSet& options, CommandLine& line);
void declare_import(OptionSet& options, CommandLine& line);
void declare_data_command(OptionSet& options, CommandLine& line);
void declare_augment(OptionSet& options, CommandLine& line);
void declare_score(OptionSet& options, CommandLine& line);
void declare_generate(OptionSet& options, CommandLine& line);
void declare_serve(OptionSet& options, CommandLine& line);
void declare_evaluate(OptionSet& options, CommandLine& line);
void declare_tokenize(OptionSet& options, CommandLine& line);
void declare_inspect(OptionSet& options, CommandLine& line);
void declare_init(OptionSet& options, CommandLine& line);
void declare_export(OptionSet& options, CommandLine& line);
void declare_merge(OptionSet& options, CommandLine& line);
void declare_quantize(OptionSet& options, CommandLine& line);
void declare_prune(OptionSet& options, CommandLine& line);
void declare_bench(OptionSet& options, CommandLine& line);
void declare_tune(OptionSet& options, CommandLine& line);
void declare_plan(OptionSet& options, CommandLine& line);
void declare_sweep(OptionSet& options, CommandLine& line);
void declare_watch(OptionSet& options, CommandLine& line);
void declare_compare(OptionSet& options, CommandLine& line);
void declare_report(OptionSet& options, CommandLine& line);
void declare_push(OptionSet& options, CommandLine& line);
void declare_replay(OptionSet& options, CommandLine& line);
void declare_doctor(OptionSet& options, CommandLine& line);
void declare_explain(OptionSet& options, CommandLine& line);

}  // namespace unsloth::app
