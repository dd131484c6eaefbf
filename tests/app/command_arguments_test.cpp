// What each command takes, and what it refuses.
#include "app/command_line_support.h"

namespace unsloth::testing {
namespace {

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

void expect_refusals_of_generate() {
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
    expect_refusals_of_generate();
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
