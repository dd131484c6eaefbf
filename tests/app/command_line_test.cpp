// The commands: which one is meant, what it carries, and what is missing.
#include "app/command_line/command_line.h"
#include "app/command_line/commands.h"
#include "common/files.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/config/support.h"
#include "unsloth/core/version.h"

namespace unsloth::testing {
namespace {

std::string error_of(const std::vector<std::string>& arguments, test::Expected expected = ErrorKind::usage) {
    return usage_message([&] { app::parse_command_line(arguments); }, expected);
}

TEST(CommandLine, TrainIsTheDefaultWhenAnOptionComesFirst) {
    for (const bool named : {false, true}) {
        std::vector<std::string> arguments = {"--model.path", "m", "--train_file", "t", "--r", "4"};
        if (named) arguments.insert(arguments.begin(), "train");
        const app::CommandLine line = app::parse_command_line(arguments);
        EXPECT_EQ(line.command, app::Command::train);
        EXPECT_EQ(line.loaded.config.model.path, "m");
        EXPECT_EQ(line.loaded.config.lora.r, 4);
        EXPECT_TRUE(line.loaded.is_given("lora.r"));
    }
}

TEST(CommandLine, TheFileIsReadBeforeTheFlagsWhereverItStands) {
    const ScratchFolder folder;
    const auto file =
        folder.write("run.json", R"({"model": {"path": "m"}, "data": {"train_file": "t"}, "lora": {"r": 8},
                                                  "logging": {"level": "error"}})");
    const app::CommandLine line = app::parse_command_line({"--lora.r", "4", "--config", file.string()});
    EXPECT_EQ(line.loaded.config.lora.r, 4);
    EXPECT_EQ(line.loaded.config.model.path, "m");
    EXPECT_EQ(line.log_level, "error");
}

TEST(CommandLine, AFileOfJsonNeedsNoFlag) {
    const ScratchFolder folder;
    const std::string file = folder.write("run.json", R"({"model": {"path": "m"}, "data": {"train_file": "t"}})");
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{file, "--r", "4"}, {"train", file, "--r", "4"}, {"--r", "4", file}}) {
        const app::CommandLine line = app::parse_command_line(arguments);
        EXPECT_EQ(line.command, app::Command::train);
        EXPECT_EQ(line.loaded.config.model.path, "m");
        EXPECT_EQ(line.loaded.config.lora.r, 4);
    }
    EXPECT_EQ(app::parse_command_line({"config", file}).loaded.config.data.train_file, "t");
    EXPECT_EQ(app::parse_command_line({"launch", "--nproc_per_node", "2", file}).launch.arguments,
              std::vector<std::string>{file});
    EXPECT_CONTAINS(error_of({"missing.json"}), "missing.json");
    EXPECT_CONTAINS(error_of({"tokenize", "--tokenizer", "d", "run.json"}), "unexpected argument 'run.json'");
}

TEST(CommandLine, WhatIsMissingIsToldBesideWhatIsWrong) {
    const std::string message = error_of({"--lerning_rate", "1", "--train_file", "t"});
    EXPECT_CONTAINS(message, "unknown option --lerning_rate");
    EXPECT_CONTAINS(message, "train needs --model.path");
    EXPECT_FALSE(contains(error_of({"--paht", "m", "--train_file", "t"}), "train needs")) << "path was meant";
    EXPECT_CONTAINS(error_of({"score", "--prmopt", "m"}), "4 errors");
}

TEST(CommandLine, AnArgumentThatMayBeTheConfigurationIsTheOnlyMistake) {
    const ScratchFolder folder;
    const std::string file = folder.write("run.json", "{}"), slip = (folder.path() / "run.josn").string();
    EXPECT_CONTAINS(error_of({"train", slip}, "option.misplaced"), "Did you mean " + file + "?");
    EXPECT_CONTAINS(error_of({slip}, "command.unknown"), "Did you mean " + file + "?");
    EXPECT_CONTAINS(error_of({"--hlep"}, "option.unknown"), "Did you mean --help?");
    EXPECT_CONTAINS(error_of({"-v"}, "option.unknown"), "Options start with two dashes");
    folder.write("adapter_config.json", "{}");
    const std::string adapter = folder.path().string();
    EXPECT_CONTAINS(error_of({"generate", adapter, "--prompt", "p"}, "option.misplaced"),
                    "Name the folder with --model.adapter_name_or_path " + adapter + ".");
    EXPECT_CONTAINS(error_of({"push", adapter, "me/x"}), "push needs --repo");
    const std::string rows = folder.write("rows.jsonl", "{}");
    EXPECT_CONTAINS(error_of({"data", rows}, "option.misplaced"), "with --data.train_file " + rows + ".");
}

TEST(CommandLine, HelpWinsOverEverythingButAnUnknownCommand) {
    EXPECT_EQ(app::parse_command_line({"--help"}).command, app::Command::help);
    EXPECT_EQ(app::parse_command_line({"-h"}).help_topic, "");
    EXPECT_EQ(app::parse_command_line({"score", "--bogus", "--help"}).help_topic, "score");
    EXPECT_EQ(app::parse_command_line({"help", "bench"}).help_topic, "bench");
    EXPECT_EQ(app::parse_command_line({"help"}).help_topic, "");
    EXPECT_FALSE(app::parse_command_line({"help"}).help_all);
    for (const std::vector<std::string>& words : {std::vector<std::string>{"--help-all"}, {"help", "--help-all"}}) {
        EXPECT_EQ(app::parse_command_line(words).help_topic, "");
        EXPECT_TRUE(app::parse_command_line(words).help_all);
    }
    EXPECT_EQ(app::parse_command_line({"--version"}).command, app::Command::version);
    EXPECT_CONTAINS(error_of({"scoer", "--help"}, "command.unknown"), "Did you mean score?");
    EXPECT_CONTAINS(error_of({"resume", "out/a"}, "command.unknown"), "--resume_from_checkpoint auto");
    EXPECT_CONTAINS(usage_message([] { app::help_text("tokenzie"); }), "Did you mean tokenize?");
    EXPECT_CONTAINS(error_of({"--learning_rate", "fast"}), "expected a number >= 0 and <= 1, or auto, found");
}

TEST(CommandLine, ScoreTakesConfigurationKeysByShortNames) {
    const app::CommandLine line = app::parse_command_line(
        {"score", "--model.path", "m", "--data.train_file", "f", "--out", "o", "--logits", "l", "--dtype", "float32"});
    EXPECT_EQ(line.command, app::Command::score);
    EXPECT_EQ(line.score.out, "o");
    EXPECT_EQ(line.score.logits, "l");
    EXPECT_EQ(line.loaded.config.model.dtype, spec::DType::f32);
    EXPECT_CONTAINS(error_of({"score", "--path", "m", "--train_file", "f"}), "score needs --out");
    EXPECT_CONTAINS(error_of({"score", "--out", "", "--path", "m", "--train_file", "f"}), "score needs --out");
    EXPECT_CONTAINS(error_of({"score", "--out", "o", "--path", "m"}, "option.missing"),
                    "score needs --data.train_file");
    EXPECT_CONTAINS(error_of({"score", "--out", "o", "--path", "m", "--datasets", "[\"a\"]"}),
                    "score needs --data.train_file");
    EXPECT_EQ(app::parse_command_line({"train", "--path", "m", "--datasets", "[\"a\"]"})
                  .loaded.config.data.datasets.at(0)
                  .path,
              "a");
    EXPECT_CONTAINS(error_of({"score", "--out", "o", "--train_file", "m"}), "score needs --model.path");
}

TEST(CommandLine, GenerateTakesAPromptOrAFile) {
    const app::CommandLine line =
        app::parse_command_line({"generate", "--path", "m", "--prompt", "-5 + 3 =", "--max-new-tokens", "7", "--json"});
    EXPECT_EQ(line.generate.prompt, "-5 + 3 =");
    EXPECT_EQ(line.generate.max_new_tokens, 7);
    EXPECT_TRUE(line.generate.json);
    EXPECT_FALSE(line.generate.raw);
    EXPECT_TRUE(app::parse_command_line({"generate", "--path", "m", "--prompt", "p", "--raw"}).generate.raw);
    EXPECT_CONTAINS(error_of({"generate", "--path", "m", "--file", "p", "--raw"}),
                    "--raw cannot be combined with --file");
    EXPECT_EQ(app::parse_command_line({"generate", "--path", "m", "--file", "p"}).generate.file, "p");
    EXPECT_CONTAINS(error_of({"generate", "--path", "m"}), "generate needs --prompt, --file or --chat");
    EXPECT_CONTAINS(error_of({"generate", "--path", "m", "--prompt", "a", "--file", "b"}), "not both");
    EXPECT_CONTAINS(error_of({"generate", "--path", "m", "--prompt", "a", "--max_new_tokens", "0"}), ">= 1");
}

TEST(CommandLine, GenerateTakesSamplingAndTheSizeOfItsCache) {
    const auto parsed = [](std::vector<std::string> more) {
        more.insert(more.begin(), {"generate", "--path", "m", "--prompt", "p"});
        return app::parse_command_line(more).generate;
    };
    const engine_api::GenerateRequest plain = parsed({});
    EXPECT_EQ(plain.sampling.temperature, 0);
    EXPECT_EQ(plain.n, 1);
    EXPECT_EQ(plain.kv_bytes, 0);
    const engine_api::GenerateRequest all = parsed({"--temperature",
                                                    "0.7",
                                                    "--top_p",
                                                    "0.9",
                                                    "--top_k",
                                                    "40",
                                                    "--min_p",
                                                    "0.05",
                                                    "--repetition_penalty",
                                                    "1.1",
                                                    "--presence_penalty",
                                                    "0.5",
                                                    "--logit_bias",
                                                    R"({"7": -3.5})",
                                                    "--seed",
                                                    "11",
                                                    "--n",
                                                    "3",
                                                    "--stop",
                                                    R"(["\n\n", "a, b"])",
                                                    "--json",
                                                    "--logprobs",
                                                    "--kv_memory",
                                                    "2GiB",
                                                    "--max_context",
                                                    "512",
                                                    "--max_rows",
                                                    "8"});
    EXPECT_EQ(all.sampling.temperature, 0.7);
    EXPECT_EQ(all.sampling.top_p, 0.9);
    EXPECT_EQ(all.sampling.top_k, 40);
    EXPECT_EQ(all.sampling.min_p, 0.05);
    EXPECT_EQ(all.sampling.repetition_penalty, 1.1);
    EXPECT_EQ(all.sampling.presence_penalty, 0.5);
    EXPECT_EQ(all.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -3.5F}}));
    EXPECT_EQ(all.seed, 11);
    EXPECT_EQ(all.n, 3);
    EXPECT_EQ(all.stop, (std::vector<std::string>{"\n\n", "a, b"}));
    EXPECT_EQ(all.kv_bytes, int64_t{2} << 30);
    EXPECT_EQ(all.max_context, 512);
    EXPECT_EQ(all.max_rows, 8);
    EXPECT_EQ(parsed({"--stop", "a, b", "--stop", "\n", "--stop", "[INST]"}).stop,
              (std::vector<std::string>{"a, b", "\n", "[INST]"}));
    EXPECT_TRUE(parsed({"--stream"}).stream);
    EXPECT_TRUE(app::parse_command_line({"generate", "--path", "m", "--chat"}).generate.chat);
    EXPECT_EQ(app::parse_command_line({"generate", "--adapter_name_or_path", "a", "--prompt", "p"})
                  .loaded.config.model.adapter_name_or_path,
              "a");

    using Folders = std::vector<std::pair<std::string, std::string>>;
    for (const std::vector<std::string>& typed : {std::vector<std::string>{"--adapter", "law=a/b,chat=c=d"},
                                                  {"--adapter", "law=a/b", "--adapter", "chat=c=d"}}) {
        std::vector<std::string> line{"generate", "--file", "f"};
        line.insert(line.end(), typed.begin(), typed.end());
        EXPECT_EQ(app::parse_command_line(line).generate.adapters.folders, (Folders{{"law", "a/b"}, {"chat", "c=d"}}));
    }

    const auto refused = [](std::vector<std::string> more) {
        more.insert(more.begin(), {"generate", "--path", "m", "--prompt", "p"});
        return error_of(more);
    };
    EXPECT_CONTAINS(refused({"--adapter", "law=a"}), "--adapter needs --file");
    const auto refused_file = [](std::vector<std::string> more) {
        more.insert(more.begin(), {"generate", "--path", "m", "--file", "f"});
        return error_of(more);
    };
    EXPECT_CONTAINS(refused_file({"--adapter", "law"}), "expected NAME=DIR, found 'law'");
    EXPECT_CONTAINS(refused_file({"--adapter", "law=a,law=b"}), "two are named 'law'");
    EXPECT_CONTAINS(refused_file({"--adapter", "law=a", "--adapter_name_or_path", "b"}), "both given");
    EXPECT_CONTAINS(error_of({"bench", "step", "--path", "m", "--adapter", "law=a"}),
                    "only bench generate takes --adapter");
    EXPECT_CONTAINS(refused({"--logit_bias", R"({"the": 1})"}), "'the' is no token's id");
    EXPECT_CONTAINS(refused({"--kv_memory", "much"}), "--kv_cache_memory");
    EXPECT_CONTAINS(refused({"--stop", R"([""])"}), "an empty text");
    EXPECT_CONTAINS(refused({"--logprobs"}), "--logprobs needs --json");
    EXPECT_CONTAINS(refused({"--stream", "--n", "2"}), "--stream cannot be combined with --n");
    EXPECT_CONTAINS(refused({"--chat", "--json"}), "--chat cannot be combined with --json");
    EXPECT_CONTAINS(refused({"--stop", ""}), "an empty text");
    EXPECT_CONTAINS(refused({"--n", "2"}), "--n only applies with --temperature: without it, decoding is greedy");
    EXPECT_CONTAINS(refused({"--min_p", "0.1"}), "--min_p only applies with --temperature");
    EXPECT_CONTAINS(refused({"--temperature", "-1"}), ">= 0");
    EXPECT_CONTAINS(refused({"--top_p", "0"}), "> 0");
}

TEST(CommandLine, Evaluate) {
    const auto line = app::parse_command_line({"evaluate", "--path", "m", "--eval_file", "e", "--metric", "exact_match",
                                               "--answer_regex", "#### (.*)", "--json"});
    EXPECT_EQ(line.command, app::Command::evaluate);
    EXPECT_EQ(line.evaluate.metric, config::AnswerMetric::exact_match);
    EXPECT_EQ(line.evaluate.answer_regex, "#### (.*)");
    EXPECT_TRUE(line.evaluate.json);
    EXPECT_NO_THROW(app::parse_command_line({"evaluate", "--path", "m", "--eval_files", R"({"a": "f"})"}));
    EXPECT_CONTAINS(error_of({"evaluate", "--path", "m"}), "--data.eval_file");
    EXPECT_CONTAINS(error_of({"evaluate", "--path", "m", "--train_file", "t"}), "data.val_size, which holds out rows");
    EXPECT_EQ(app::parse_command_line({"evaluate", "--path", "m", "--train_file", "t", "--val_size", "3"})
                  .loaded.config.data.val_size,
              3);
    EXPECT_CONTAINS(error_of({"evaluate", "--path", "m", "--eval_file", "e", "--answer_regex", "a"}),
                    "--answer_regex only applies with --metric");
    EXPECT_CONTAINS(error_of({"evaluate", "--path", "m", "--eval_file", "e", "--metric", "regex"}),
                    "--metric regex needs --answer_regex");
}

TEST(CommandLine, DataAndItsAugmentation) {
    const app::CommandLine data =
        app::parse_command_line({"data", "--train_file", "t", "--n", "5", "--json", "--color", "always"});
    EXPECT_EQ(data.command, app::Command::data);
    EXPECT_EQ(data.data.n, 5);
    EXPECT_TRUE(data.data.json);
    EXPECT_EQ(data.data.color, app::ColorChoice::always);
    EXPECT_CONTAINS(error_of({"data"}), "data needs --data.train_file");
    EXPECT_CONTAINS(error_of({"data", "agument", "--train_file", "t"}), "Did you mean data augment?");
    EXPECT_CONTAINS(error_of({"data", "again", "--train_file", "t"}), "unexpected argument 'again'");

    const app::CommandLine augment =
        app::parse_command_line({"data", "augment", "--in", "i", "--out", "o", "--seed", "5", "--val_size", "3",
                                 "--eval_out", "e", "--fields", "instruction,input", "--swap_rate", "0.5"});
    EXPECT_EQ(augment.command, app::Command::augment);
    EXPECT_EQ(augment.augment.in, "i");
    EXPECT_EQ(augment.augment.eval_out, "e");
    EXPECT_EQ(augment.augment.fields, (std::vector<std::string>{"instruction", "input"}));
    EXPECT_EQ(augment.augment.swap_rate, 0.5);
    EXPECT_EQ(augment.loaded.config.training.seed, 5);
    EXPECT_EQ(augment.loaded.config.data.val_size, 3);
    EXPECT_CONTAINS(error_of({"data", "augment", "--in", "i"}), "data augment needs --out");
    EXPECT_CONTAINS(error_of({"data", "augment", "--out", "o", "--delete_rate", "1.5"}), "<= 1");
    EXPECT_EQ(app::parse_command_line({"data", "augment", "--help"}).help_topic, "data augment");
    EXPECT_EQ(app::parse_command_line({"help", "data", "augment"}).help_topic, "data augment");
    EXPECT_EQ(app::parse_command_line({"help", "data"}).help_topic, "data");
    EXPECT_CONTAINS(app::help_text("data augment"), "--thesaurus FILE");
}

TEST(CommandLine, TheProbeHasTwoWords) {
    EXPECT_EQ(app::parse_command_line({"probe", "grpo"}).command, app::Command::probe_grpo);
    EXPECT_CONTAINS(error_of({"probe"}), "Did you mean probe grpo?");
    EXPECT_CONTAINS(error_of({"probe", "grpo", "--n", "1"}), "--n");
    EXPECT_CONTAINS(app::shell_completion("bash"), "\"data augment\"|\"probe grpo\")");
    EXPECT_CONTAINS(app::shell_completion("bash"), "        probe_grpo)\n");
}

TEST(CommandLine, TokenizeInspectInitBench) {
    const app::CommandLine tokenize = app::parse_command_line(
        {"tokenize", "--tokenizer", "d", "--template", "chatml", "--decode", "--no-special", "--log_level", "debug"});
    EXPECT_EQ(tokenize.tokenize.tokenizer, "d");
    EXPECT_EQ(tokenize.tokenize.chat_template, "chatml");
    EXPECT_TRUE(tokenize.tokenize.decode);
    EXPECT_TRUE(tokenize.tokenize.no_special);
    EXPECT_EQ(tokenize.log_level, "debug");
    EXPECT_CONTAINS(error_of({"tokenize"}), "tokenize needs --tokenizer");
    EXPECT_CONTAINS(error_of({"tokenize", "--tokenizer", "d", "--lora.r", "1"}), "unknown option --lora.r");

    const app::CommandLine inspect = app::parse_command_line({"inspect", "--json", "folder"});
    EXPECT_EQ(inspect.inspect.path, "folder");
    EXPECT_TRUE(inspect.inspect.json);
    EXPECT_CONTAINS(error_of({"inspect"}), "inspect needs DIR|FILE");
    EXPECT_CONTAINS(error_of({"inspect", "a", "b"}, "option.misplaced"), "unexpected argument 'b'");
    EXPECT_CONTAINS(error_of({"inspect", "--path", "a"}), "unknown option --path");

    const app::CommandLine init =
        app::parse_command_line({"init", "--shape", "llama-3.1-8b", "--out", "o", "--quantize", "nf4", "--seed", "5",
                                 "--dtype", "float32", "--tokenizer", "t", "--layers", "4"});
    EXPECT_EQ(init.init.layers, 4);
    EXPECT_EQ(init.init.shape, "llama-3.1-8b");
    EXPECT_EQ(init.init.quantize, app::InitQuantize::nf4);
    EXPECT_EQ(init.init.seed, 5);
    EXPECT_EQ(init.init.dtype, spec::DType::f32);
    EXPECT_EQ(init.init.tokenizer, "t");
    EXPECT_EQ(app::parse_command_line({"init", "--config", "c.json", "--out", "o"}).init.config_file, "c.json");
    EXPECT_CONTAINS(error_of({"init", "--out", "o"}), "init needs --shape or --model_config");

    const app::CommandLine bench = app::parse_command_line(
        {"bench", "step", "--path", "m", "--batch", "2", "--seq", "64", "--steps", "3", "--warmup", "0", "--json"});
    EXPECT_EQ(bench.bench.what, engine_api::BenchSubject::step);
    EXPECT_EQ(bench.bench.batch, 2);
    EXPECT_EQ(bench.bench.seq, 64);
    EXPECT_EQ(bench.bench.steps, 3);
    EXPECT_EQ(bench.bench.warmup_of(900'000), 0);
    const engine_api::BenchRequest unsaid = app::parse_command_line({"bench", "step", "--path", "m"}).bench;
    EXPECT_EQ(unsaid.warmup_of(), 5);
    EXPECT_EQ(unsaid.warmup_of(12'000), 5);
    EXPECT_EQ(unsaid.warmup_of(25'000), 2);
    EXPECT_EQ(unsaid.warmup_of(150'000), 0) << "a step of minutes has nothing to warm up for";
    EXPECT_TRUE(bench.bench.json);
    EXPECT_EQ(app::parse_command_line({"bench", "ops"}).bench.what, engine_api::BenchSubject::ops);
    EXPECT_EQ(app::parse_command_line({"bench", "gemm"}).bench.tune, false);
    EXPECT_EQ(app::parse_command_line({"bench", "nf4"}).bench.what, engine_api::BenchSubject::nf4);
    const app::CommandLine tune = app::parse_command_line({"bench", "gemm", "--tune"});
    EXPECT_EQ(tune.bench.what, engine_api::BenchSubject::gemm);
    EXPECT_TRUE(tune.bench.tune);
    EXPECT_CONTAINS(error_of({"bench", "step"}), "bench step needs --model.path");
    EXPECT_CONTAINS(error_of({"bench", "stp"}), "Did you mean step?");
    EXPECT_CONTAINS(error_of({"bench"}), "bench needs step|ops|gemm|nf4");
    const engine_api::BenchRequest check = app::parse_command_line({"bench", "--check", "--rows", "a,b c"}).bench;
    EXPECT_TRUE(check.check);
    EXPECT_EQ(check.rows, (std::vector<std::string>{"a", "b c"}));
    EXPECT_TRUE(check.floors.ends_with(".json"));
    for (const char* option : {"--rows", "--floors"})
        EXPECT_CONTAINS(error_of({"bench", "ops", option, "x"}), std::string(option) + " only applies with --check");
    for (const auto& arguments : {std::vector<std::string>{"bench"}, {"bench", "stp"}})
        EXPECT_FALSE(contains(error_of(arguments), "model.path")) << "it is not known what needs one";
}

TEST(CommandLine, Export) {
    const app::CommandLine model = app::parse_command_line(
        {"export", "gguf", "--model", "m", "--out", "m.gguf", "--type", "q4_k", "--threads", "3"});
    EXPECT_EQ(model.command, app::Command::exporting);
    EXPECT_EQ(model.exporting.model, "m");
    EXPECT_EQ(model.exporting.out, "m.gguf");
    EXPECT_EQ(model.exporting.type, app::ExportType::q4_k_m);
    EXPECT_EQ(model.exporting.threads, 3);
    const app::CommandLine adapter =
        app::parse_command_line({"export", "gguf", "--adapter", "a", "--base", "b", "--out", "a.gguf"});
    EXPECT_EQ(adapter.exporting.adapter, "a");
    EXPECT_EQ(adapter.exporting.model, "b");
    EXPECT_EQ(adapter.exporting.type, app::ExportType::automatic);
    EXPECT_CONTAINS(error_of({"export"}), "export needs gguf");
    EXPECT_CONTAINS(error_of({"export", "onnx", "--out", "o"}), "gguf");
    EXPECT_CONTAINS(error_of({"export", "gguf", "--model", "m"}), "export needs --out");
    EXPECT_CONTAINS(error_of({"export", "gguf", "--out", "o"}), "needs --model.path or --model.adapter_name_or_path");
    EXPECT_CONTAINS(error_of({"export", "gguf", "--out", "o", "--model", "m", "--outtype", "f16"}), "--type");
}

TEST(CommandLine, MergeAndQuantize) {
    const app::CommandLine merge = app::parse_command_line(
        {"merge", "--adapter", "a", "--base", "b", "--out", "o", "--dtype", "fp16", "--load-in-4bit",
         "--max_shard_size", "1.5GiB", "--tolerance", "0.25", "--device", "cuda:1", "--verify", "some words"});
    EXPECT_EQ(merge.merge.adapter, "a");
    EXPECT_EQ(merge.merge.base, "b");
    EXPECT_EQ(merge.merge.out, "o");
    EXPECT_EQ(merge.merge.dtype, spec::WeightType::f16);
    EXPECT_TRUE(merge.merge.load_in_4bit);
    EXPECT_EQ(merge.merge.max_shard_bytes, 1610612736);
    EXPECT_EQ(merge.merge.tolerance, 0.25);
    EXPECT_EQ(merge.merge.device, "cuda:1");
    EXPECT_EQ(merge.merge.verify, "some words");
    const app::CommandLine plain =
        app::parse_command_line({"merge", "--adapter", "a", "--out", "o", "--dtype", "bfloat16"});
    EXPECT_EQ(plain.merge.dtype, spec::WeightType::bf16);
    EXPECT_EQ(plain.merge.max_shard_bytes, 5'000'000'000);
    EXPECT_EQ(plain.merge.device, "cpu");
    EXPECT_FALSE(plain.merge.load_in_4bit || plain.merge.no_verify || plain.merge.tolerance);
    EXPECT_CONTAINS(error_of({"merge", "--out", "o"}), "merge needs --model.adapter_name_or_path");
    EXPECT_CONTAINS(error_of({"merge", "--adapter", "a"}), "merge needs --out");
    EXPECT_CONTAINS(error_of({"merge", "--adapter", "a", "--out", "o", "--dtype", "int4"}), "--dtype");
    EXPECT_CONTAINS(error_of({"merge", "--adapter", "a", "--out", "o", "--no_verify", "--verify", "x"}),
                    "--no_verify cannot be combined with --verify");
    EXPECT_CONTAINS(error_of({"merge", "--adapter", "a", "--out", "o", "--device", "cuda:x"}),
                    "--device: expected auto, cpu");
    EXPECT_CONTAINS(error_of({"merge", "--adapter", "a", "--out", "o", "--tolerance", "-1"}), "--tolerance");

    const app::CommandLine quantize = app::parse_command_line(
        {"quantize", "--model", "m", "--out", "o", "--type", "int8", "--max_shard_size", "300000"});
    EXPECT_EQ(quantize.quantize.model, "m");
    EXPECT_EQ(quantize.quantize.out, "o");
    EXPECT_EQ(quantize.quantize.type, spec::WeightType::int8);
    EXPECT_EQ(quantize.quantize.max_shard_bytes, 300000);
    EXPECT_EQ(app::parse_command_line({"quantize", "--model", "m", "--out", "o"}).quantize.type, spec::WeightType::nf4);
    EXPECT_CONTAINS(error_of({"quantize", "--out", "o"}), "quantize needs --model");
    EXPECT_CONTAINS(error_of({"quantize", "--model", "m", "--out", "o", "--type", "gptq"}), "need no rows");
    const app::CommandLine prune =
        app::parse_command_line({"prune", "--model.path", "m", "--out", "o", "--calibration", "rows", "--layers", "3",
                                 "--method", "bi", "--intermediate", "256", "--max_shard_size", "300000"});
    EXPECT_EQ(prune.prune.layers, 3);
    EXPECT_EQ(prune.prune.method, app::PruneMethod::block_influence);
    EXPECT_EQ(prune.prune.intermediate, 256);
    EXPECT_EQ(prune.prune.max_shard_bytes, 300000);
    const std::vector<std::string> experts = {"prune",         "--model.path", "m",         "--out", "o",
                                              "--calibration", "rows",         "--experts", "4"};
    EXPECT_EQ(app::parse_command_line(experts).prune.experts, 4);
    EXPECT_CONTAINS(error_of({"prune", "--model.path", "m", "--out", "o", "--layers", "3"}),
                    "prune needs --calibration");
    EXPECT_CONTAINS(error_of({"prune", "--out", "o", "--calibration", "r", "--layers", "3"}),
                    "prune needs --model.path");
    EXPECT_EQ(app::parse_command_line({"import-config", "f", "--from", "unsloth"}).importing.from,
              import::PeerProgram::trl);
}

// The names that configurations have hold in every command; each command's older ones stay.
TEST(CommandLine, ModelAdapterAndTemplateHaveOneNameEverywhere) {
    const auto parsed = [](const std::vector<std::string>& words) { return app::parse_command_line(words); };
    for (const char* name : {"--model.path", "--path", "--base"}) {
        EXPECT_EQ(parsed({"merge", name, "m", "--model.adapter_name_or_path", "a", "--out", "o"}).merge.base, "m");
        EXPECT_EQ(parsed({"export", "gguf", name, "m", "--adapter", "a", "--out", "o"}).exporting.model, "m");
    }
    for (const char* name : {"--model.path", "--path", "--model"}) {
        EXPECT_EQ(parsed({"quantize", name, "m", "--out", "o"}).quantize.model, "m");
        EXPECT_EQ(parsed({"export", "gguf", name, "m", "--out", "o"}).exporting.model, "m");
    }
    for (const char* name : {"--model.adapter_name_or_path", "--adapter_name_or_path", "--adapter"}) {
        EXPECT_EQ(parsed({"merge", name, "a", "--out", "o"}).merge.adapter, "a");
        EXPECT_EQ(parsed({"export", "gguf", name, "a", "--out", "o"}).exporting.adapter, "a");
    }
    for (const char* name : {"--data.template", "--template"}) {
        EXPECT_EQ(parsed({"tokenize", "--model.path", "m", name, "zephyr"}).tokenize.chat_template, "zephyr");
        EXPECT_EQ(parsed({"generate", "--path", "m", "--chat", name, "zephyr"}).loaded.config.data.template_name,
                  "zephyr");
    }
    EXPECT_EQ(parsed({"tokenize", "--tokenizer", "t"}).tokenize.tokenizer, "t");
    const app::MergeRequest merge =
        parsed({"merge", "--adapter", "a", "--out", "o", "--model.load_in_4bit", "--hardware.device", "cuda"}).merge;
    EXPECT_TRUE(merge.load_in_4bit);
    EXPECT_EQ(merge.device, "cuda");
    // An adapter names its base.
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"score", "--data.train_file", "t", "--out", "o"},
          {"evaluate", "--eval_file", "t"}}) {
        EXPECT_CONTAINS(error_of(words), words[0] + " needs --model.path");
        std::vector<std::string> with = words;
        with.insert(with.end(), {"--adapter_name_or_path", "a"});
        EXPECT_NO_THROW(parsed(with));
    }
}

TEST(CommandLine, FilesToWriteAreKnown) {
    const app::CommandLine line = app::parse_command_line(
        {"score", "--path", "m", "--train_file", "t", "--out", "o.jsonl", "--logits", "l.safetensors"});
    ASSERT_EQ(line.outputs.size(), 2u);
    EXPECT_EQ(line.outputs[0].option + " " + line.outputs[0].path, "--out o.jsonl");
    EXPECT_EQ(line.outputs[1].option + " " + line.outputs[1].path, "--logits l.safetensors");
    ASSERT_EQ(line.inputs.size(), 2u);
    EXPECT_EQ(line.inputs[1].option + " " + line.inputs[1].path, "--data.train_file t");
    EXPECT_TRUE(line.typed.contains("data.train_file"));
}

TEST(CommandLine, SizesHaveUnits) {
    const auto bytes = [](const std::string& size) {
        return app::parse_command_line({"quantize", "--model", "m", "--out", "o", "--max_shard_size", size})
            .quantize.max_shard_bytes;
    };
    EXPECT_EQ(bytes("5GB"), 5'000'000'000);
    EXPECT_EQ(bytes("2 mb"), 2'000'000);
    EXPECT_EQ(bytes("3KiB"), 3072);
    EXPECT_EQ(bytes("7"), 7);
    EXPECT_EQ(bytes("0.5 TB"), 500'000'000'000);
    for (const char* wrong : {"0", "5XB", "GB", "-1", "1e300GB", "0.1", "5GBB", "nan", ""})
        EXPECT_CONTAINS(error_of({"quantize", "--model", "m", "--out", "o", std::string("--max_shard_size=") + wrong}),
                        "--max_shard_size");
}

TEST(CommandLine, OfAConfigurationACommandTakesWhatItReads) {
    const auto refused = [](const std::vector<std::string>& words, const std::string& option) {
        EXPECT_CONTAINS(error_of(words), words[0] + " does not read " + option);
        EXPECT_CONTAINS(error_of(words), "unsloth-train help " + words[0]);
    };
    refused({"evaluate", "--path", "m", "--eval_file", "e", "--learning_rate", "1"}, "training.learning_rate");
    refused({"evaluate", "--path", "m", "--eval_file", "e", "--overwrite_output_dir"}, "training.overwrite_output_dir");
    refused({"evaluate", "--path", "m", "--eval_file", "e", "--eval_strategy", "no"}, "training.eval_steps");
    refused({"generate", "--path", "m", "--prompt", "p", "--lora.r", "4"}, "lora.r");
    refused({"generate", "--path", "m", "--prompt", "p", "--compute_dtype", "int8"}, "model.compute_dtype");
    refused({"score", "--path", "m", "--train_file", "t", "--out", "o", "--zero_stage", "3"}, "distributed.zero_stage");
    refused({"data", "--train_file", "t", "--device", "cpu"}, "hardware.device");
    refused({"doctor", "--train_file", "t"}, "data.train_file");
    EXPECT_NO_THROW(
        app::parse_command_line({"evaluate", "--path", "m", "--eval_file", "e", "--bf16", "--max_length", "8"}));
    // A run's configuration is given to many commands.
    const ScratchFolder folder;
    const std::string file =
        folder.write("run.json", R"({"model": {"path": "m"}, "data": {"train_file": "t", "val_size": 2},
                                     "training": {"learning_rate": 0.1, "output_dir": "o"}, "lora": {"r": 4}})");
    for (const char* command : {"train", "data", "plan", "evaluate", "doctor", "tune", "config"})
        EXPECT_NO_THROW(app::parse_command_line({command, file})) << command;
    EXPECT_EQ(app::parse_command_line({"score", file, "--out", "o"}).loaded.config.lora.r, 4);

    const auto lists = [](const std::string& command, const std::string& option) {
        return contains(app::help_text(command), "--" + option + " ");
    };
    for (const char* command : {"train", "plan", "config"}) EXPECT_TRUE(lists(command, "training.learning_rate"));
    for (const char* command : {"generate", "evaluate", "score", "data", "data augment", "doctor"})
        EXPECT_FALSE(lists(command, "training.learning_rate")) << command;
    EXPECT_TRUE(lists("generate", "model.path"));
    EXPECT_TRUE(lists("generate", "data.template"));
    EXPECT_FALSE(lists("generate", "data.train_file"));
    EXPECT_TRUE(lists("evaluate", "data.eval_file"));
    // A slip is no hint at what the command does not read.
    EXPECT_FALSE(
        contains(error_of({"generate", "--path", "m", "--prompt", "p", "--learnin_rate", "1"}), "Did you mean"));
    EXPECT_CONTAINS(app::options_markdown(),
                    "Reads of a configuration: `model` without `model.compute_dtype` and `model.max_seq_length`");
}

TEST(CommandLine, MistakesAreNamed) {
    EXPECT_CONTAINS(error_of({}), "nothing to do");
    EXPECT_CONTAINS(error_of({"trian"}), "Did you mean train?");
    EXPECT_CONTAINS(error_of({"--train_file", "t"}), "train needs --model.path");
    EXPECT_CONTAINS(error_of({"--path", "m"}), "train needs --data.train_file");
    EXPECT_CONTAINS(error_of({"config", "--schema", "--markdown"}), "one of --schema, --markdown");
    EXPECT_CONTAINS(error_of({"config", "--config", "/nonexistent.json"}), "/nonexistent.json");
    EXPECT_CONTAINS(error_of({"run.jsn"}), "A configuration's name ends in .json");
}

TEST(CommandLine, TheShortHelpIsOneScreen) {
    const std::string help = app::help_text("");
    int lines = 0, options = 0;
    std::istringstream stream(help);
    for (std::string line; std::getline(stream, line); ++lines) {
        const auto columns =
            std::count_if(line.begin(), line.end(), [](unsigned char byte) { return (byte & 0xC0) != 0x80; });
        EXPECT_LE(columns, 80) << line;
        options += line.starts_with("  --");
    }
    EXPECT_LE(lines, 46);
    EXPECT_EQ(options, 12);
    for (const auto& command : app::commands())
        if (command.name.find(' ') == std::string::npos) {
            EXPECT_CONTAINS(help, "\n  " + command.name + " ");
        }
    for (const char* line : {"  --model.path PATH ", "  --training.gradient_accumulation_steps N ",
                             "Peak learning rate (0.0002)\n", "--help-all lists all"})
        EXPECT_CONTAINS(help, line);
}

TEST(CommandLine, EveryOptionAndCommandStandsInTheHelp) {
    const std::string help = app::help_text("", /*all=*/true);
    const Json sections = Json::parse(config::config_schema()).at("properties");
    int listed = 0;
    for (const auto& [section, content] : sections.items()) {
        if (section == "$schema") continue;
        for (const auto& [key, option] : content.at("properties").items()) {
            if (!option.contains("default")) continue;
            EXPECT_CONTAINS(help, "--" + section + "." + key + " ");
            ++listed;
        }
    }
    EXPECT_GE(listed, 48);
    for (const char* command : {"train", "config", "score", "generate", "tokenize", "inspect", "init", "export",
                                "merge", "quantize", "bench"}) {
        EXPECT_CONTAINS(help, std::string("\n  ") + command);
        EXPECT_CONTAINS(app::help_text(command), std::string("Usage: unsloth-train ") + command);
    }
    EXPECT_CONTAINS(app::help_text("generate"), "--max_new_tokens N");
    std::string words;  // without the wrapping
    std::istringstream stream(help);
    for (std::string word; stream >> word;) words += word + " ";
    EXPECT_CONTAINS(words, "Also called torch_dtype, bnb_4bit_compute_dtype.");
    EXPECT_EQ(words.find("Also called ddp_timeout"), std::string::npos);  // of the option ddp_timeout
    EXPECT_CONTAINS(help, "(default: 0.0002)");
}

TEST(Version, IsTheBuildSystems) {
    std::ifstream file(test::source_folder() / "CMakeLists.txt");
    std::stringstream text;
    text << file.rdbuf();
    const std::string content = text.str();
    std::smatch found;
    ASSERT_TRUE(std::regex_search(content, found, std::regex(R"(project\(\S+ VERSION (\S+))")));
    EXPECT_EQ(found[1].str(), version);
}

TEST(CommandLine, GenerateTakesVllmsNamesAndItsFormerOnes) {
    for (const bool former : {false, true}) {
        const auto flag = [&](const char* present, const char* past) {
            return std::string("--") + (former ? past : present);
        };
        const auto request =
            app::parse_command_line({"generate", "--model.path", "m", "--prompt", "x", flag("max_num_seqs", "max_rows"),
                                     "7", flag("max_model_len", "max_context"), "99",
                                     flag("max_num_batched_tokens", "max_batch_tokens"), "64",
                                     flag("kv_cache_memory", "kv_memory"), "2KiB"})
                .generate;
        EXPECT_EQ(request.max_rows, 7);
        EXPECT_EQ(request.max_context, 99);
        EXPECT_EQ(request.max_batch_tokens, 64);
        EXPECT_EQ(request.kv_bytes, 2048);
    }
}

}  // namespace
}  // namespace unsloth::testing
