// Reading: precedence, spellings, aliases, and what is said about mistakes.
#include "tests/config/support.h"
#include "unsloth/config/auto_values.h"

namespace unsloth::testing {
namespace {

TEST(Precedence, FlagsWinOverTheFileAndLaterFlagsOverEarlierOnes) {
    const auto loaded = load_text(R"({"lora": {"r": 8, "lora_alpha": 4}})", {"--lora.r", "32", "--r=64"});
    EXPECT_EQ(loaded.config.lora.r, 64);
    EXPECT_EQ(loaded.config.lora.lora_alpha, 4);
    EXPECT_EQ(loaded.given, (std::set<std::string>{"lora.r", "lora.lora_alpha"}));
}

TEST(Precedence, NullTakesAnOptionalValueBack) {
    const auto loaded = load_text(R"({"data": {"eval_file": "e.jsonl"}})", {"--eval_file", "null"});
    EXPECT_EQ(loaded.config.data.eval_file, std::nullopt);
    const auto flag = load_text("{}", {"--greater_is_better", "--greater_is_better", "null"});
    EXPECT_FALSE(flag.config.training.greater_is_better);
}

TEST(File, CommentsAndASchemaReferenceAreAllowed) {
    const auto loaded = load_text("// a run\n{\"$schema\": \"s.json\", \"lora\": {\"r\": 4 /* small */}}");
    EXPECT_EQ(loaded.config.lora.r, 4);
}

TEST(File, MalformedJsonNamesFileLineAndColumn) {
    const std::string message = file_error("{\n  \"lora\": {\n    \"r\": 8,,\n  }\n}\n");
    EXPECT_CONTAINS(message, "run.json:3:12: ");
    EXPECT_CONTAINS(file_error("{\n\"lora\": {\"r\": 8}", "config.syntax"), "run.json:2:17: ");
    EXPECT_CONTAINS(file_error(""), "run.json:1:1: ");
}

TEST(File, StructuralMistakesAreRefused) {
    EXPECT_CONTAINS(file_error("[1]", "config.not-an-object"), "expected an object of sections");
    EXPECT_CONTAINS(file_error(R"({"lora": 3})"), "lora: expected an object of options");
    EXPECT_CONTAINS(file_error(R"({"lora": {"r": 8, "r": 9}})"), ":1:19: the key \"r\" appears twice");
    EXPECT_CONTAINS(file_error("{\"lora\": {\"r\": 8}, // \"model\"\n \"model\": {},\n\t\"lora\": {}}"),
                    ":3:2: the key \"lora\" appears twice");
    EXPECT_CONTAINS(file_error(R"({"": {}})", "option.unknown"), "unknown section");
    const std::string missing =
        usage_message([] { config::load_config("/nonexistent/run.json", {}); }, "config.cannot-read");
    EXPECT_CONTAINS(missing, "/nonexistent/run.json");
}

TEST(File, WhatNestsWithoutEndIsRefused) {
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    EXPECT_CONTAINS(file_error(R"({"lora": {"target_modules": )" + deep + "}}"), "nest deeper than 64 levels");
    EXPECT_CONTAINS(file_error(std::string(1'000'000, '[')), "nest deeper than 64 levels");
}

TEST(File, AnUnknownKeySuggestsTheNearestOne) {
    EXPECT_CONTAINS(file_error(R"({"training": {"lerning_rate": 1}})", "option.unknown"),
                    "Did you mean training.learning_rate?");
    EXPECT_CONTAINS(file_error(R"({"lora": {"lora_dropuot": 0}})"), "Did you mean lora.lora_dropout?");
    EXPECT_CONTAINS(file_error(R"({"model": {"r": 8}})"), "Did you mean lora.r?");
    EXPECT_CONTAINS(file_error(R"({"modle": {}})"), "Did you mean model?");
    EXPECT_CONTAINS(file_error(R"({"learning_rate": 1e-4})"), "Did you mean training.learning_rate?");
    const std::string far = file_error(R"({"lora": {"xyzzy_quux": 8}})");
    EXPECT_CONTAINS(far, "unknown option lora.xyzzy_quux");
    EXPECT_FALSE(contains(far, "Did you mean"));
}

TEST(File, WhatIsMoreThanTwoEditsAwayIsNotSuggested) {
    for (const char* far : {R"({"training": {"tf33": 1}})", R"({"training": {"gradient_steps": 1}})",
                            R"({"lora": {"q": 1}})", R"({"training": {"eval_stepsize": 1}})"})
        EXPECT_FALSE(contains(file_error(far), "Did you mean")) << file_error(far);
    EXPECT_CONTAINS(file_error(R"({"training": {"eval_stesp": 1}})"), "Did you mean training.eval_steps?");
}

TEST(File, AllMistakesAreToldAtOnce) {
    const std::string message = usage_message(
        [] {
            load_text(R"({"modle": {"path": "m"}, "lora": {"r": 0, "lora_alhpa": 3, "bias": "all"},
                      "training": {"eval_steps": 5, "optim": "lion"}, "data": {"eval_fiel": "e", "packing": true}})",
                      {"--max_tokens_per_batch", "100", "--epochs", "3", "--lora_dropout", "2"});
        },
        "config.several-errors");
    EXPECT_TRUE(message.starts_with("9 errors\n")) << message;
    for (const char* part :
         {"run.json: unknown section 'modle'\n    Did you mean model?",
          "lora.r: expected an integer >= 1 and <= 1000000, found 0",
          "unknown option lora.lora_alhpa\n    Did you mean lora.lora_alpha?", "lora.bias: all is refused",
          "training.optim: expected one of", "unknown option data.eval_fiel",
          "[option.unknown] unknown option --epochs", "[option.invalid-value] --lora_dropout: expected a number",
          "[option.conflict] data.packing cannot be combined with training.max_tokens_per_batch"})
        EXPECT_CONTAINS(message, part);
    // Whether there are rows to evaluate on depends on what the misspelt key was to be.
    EXPECT_FALSE(contains(message, "training.eval_steps needs")) << message;
}

TEST(File, TheHomeFolderIsMeantByATilde) {
    ::setenv("HOME", "/home/someone", 1);
    const auto loaded = load_text(R"({"model": {"path": "~/m"}, "data": {"datasets": ["~/a", "b~/c"]}})",
                                  {"--output_dir=~/out", "--eval_file", "~"});
    EXPECT_EQ(loaded.config.model.path, "/home/someone/m");
    EXPECT_EQ(loaded.config.data.datasets.at(0).path, "/home/someone/a");
    EXPECT_EQ(loaded.config.data.datasets.at(1).path, "b~/c");
    EXPECT_EQ(loaded.config.training.output_dir, "/home/someone/out");
    EXPECT_EQ(loaded.config.data.eval_file, "/home/someone");
    EXPECT_EQ(config::load_config({}, {"--lr_scheduler_type", "cosine"}).config.model.path, "");
}

TEST(File, NamesOfOtherProgramsAreSuggestedButNotTaken) {
    EXPECT_CONTAINS(file_error(R"({"training": {"lr": 1e-4}})"), "Did you mean training.learning_rate?");
    EXPECT_CONTAINS(file_error(R"({"training": {"batch_size": 1}})"), "training.per_device_train_batch_size");
    EXPECT_CONTAINS(flag_error({"--epochs", "3"}, "option.unknown"), "Did you mean --training.num_train_epochs?");
}

// One word, and not one on each of its fields.
TEST(File, APeersFileIsNamedOnce) {
    const auto expect = [](const std::string& content, const std::vector<std::string>& parts) {
        const std::string message = file_error(content);
        for (const std::string& part : parts) EXPECT_CONTAINS(message, part);
        EXPECT_FALSE(contains(message, " errors")) << message;
        EXPECT_FALSE(contains(message, "unknown")) << message;
    };
    const std::string import = "unsloth-train import-config ";
    expect(R"({"base_model": "m", "adapter": "lora", "micro_batch_size": 2, "datasets": [], "lr": 1})",
           {"seems to be a configuration of axolotl (base_model, micro_batch_size, adapter)", import,
            "run.json --out run.json"});
    expect(R"({"model_name_or_path": "m", "stage": "sft", "finetuning_type": "lora", "template": "llama3"})",
           {"LLaMA-Factory (stage, template, finetuning_type)", import});
    expect(R"({"model_name_or_path": "m", "dataset_name": "rows", "use_peft": true, "learning_rate": 1e-4})",
           {"TRL or Unsloth (model_name_or_path, dataset_name, use_peft)", import});
    expect(R"({"model": "m", "rlhf_type": "grpo", "tuner_type": "lora"})",
           {"ms-swift (tuner_type, rlhf_type)", import});
    expect(R"({"zero_optimization": {"stage": 2}})",
           {"is of DeepSpeed (zero_optimization)", "docs/how-to/migrate/fsdp-and-deepspeed.md"});
    expect(R"({"model": "m", "peft_config": {}, "train_dataset": "a"})", {"LLaMA-Factory's v1", "are not read"});
    expect(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8})", {"is of a model", "model.path takes"});
    // Options of ours outside of their sections are no peer's.
    EXPECT_CONTAINS(file_error(R"({"per_device_train_batch_size": 2, "max_seq_length": 8})"),
                    "Each key belongs in its section");
    EXPECT_CONTAINS(file_error(R"({"model": {"path": "m"}, "stage": "sft"})"), "unknown section 'stage'");
    EXPECT_CONTAINS(file_error(R"({"model": "m"})"), "model: expected an object of options");
}

TEST(File, ASyntaxErrorShowsTheLine) {
    EXPECT_CONTAINS(file_error("{\"lora\": {\n  \"r\": 8\n  \"lora_alpha\": 16\n}}"),
                    "run.json:3:3: no valid JSON: a comma is missing before this\n"
                    "  3 |   \"lora_alpha\": 16\n"
                    "    |   ^");
    EXPECT_CONTAINS(file_error("// one\n{\"lora\": {\"r\": 8,}}"), "there is a comma before this }: take it out");
    EXPECT_CONTAINS(flag_error({"--rank_pattern", "{q_proj: 8}"}),
                    "--rank_pattern: expected JSON: a key must be in double quotes: \"q_proj\"\n"
                    "  1 | {q_proj: 8}\n"
                    "    |  ^");
    for (const char* content : {"{\"a\": }", "{", "[1 2]", "{\"a\": tru}", "\x01", "{\"a\": \"\xff\"}"})
        for (const char* foreign : {"parse_error", "while parsing", "unexpected", "literal", "json.exception"})
            EXPECT_FALSE(contains(file_error(content), foreign)) << file_error(content);
}

TEST(File, AWrongTypeSaysKeyExpectedFoundAndFile) {
    const std::string message = file_error(R"({"lora": {"r": "eight"}})");
    EXPECT_CONTAINS(message, "run.json: lora.r: expected an integer >= 1 and <= 1000000, found the string \"eight\"");
    EXPECT_CONTAINS(file_error(R"({"lora": {"r": 1.5}})", "option.invalid-value"), "found the number 1.5");
    EXPECT_CONTAINS(file_error(R"({"lora": {"r": null}})"), "found null");
    EXPECT_CONTAINS(file_error(R"({"lora": {"r": 18446744073709551615}})"), "expected an integer");
    EXPECT_CONTAINS(file_error(R"({"data": {"shuffle": 1}})"), "expected true or false, found the number 1");
    EXPECT_CONTAINS(file_error(R"({"lora": {"target_modules": "q_proj"}})"), "expected a list of strings");
    EXPECT_CONTAINS(file_error(R"({"lora": {"target_modules": [1]}})"), "expected a list of strings");
    EXPECT_CONTAINS(file_error(R"({"lora": {"rank_pattern": {"a": "b"}}})"), "expected an object of integers");
    EXPECT_CONTAINS(file_error(R"({"training": {"lr_scheduler_kwargs": {"a": [1]}}})"),
                    "expected an object of numbers");
    EXPECT_CONTAINS(file_error(R"({"data": {"eval_file": ""}})"), "expected a string that is not empty, or null");
    EXPECT_CONTAINS(file_error(R"({"training": {"weight_decay": "0.1"}})"), "expected a number");
    EXPECT_CONTAINS(file_error(R"({"training": {"weight_decay": "0.1"}})"), "Without the quotes it is a number: 0.1");
    EXPECT_CONTAINS(file_error(R"({"lora": {"lora_alpha": 1e30}})"), "<= 1000000");
    EXPECT_CONTAINS(file_error(R"({"lora": {"loraplus_lr_ratio": 1e30}})"), "<= 1000000");
    EXPECT_CONTAINS(file_error("\xFF\xFE{"), "UTF-16");
    EXPECT_EQ(load_text(R"({"lora": {"r": 8.0}})").config.lora.r, 8);  // JSON knows one kind of number
}

TEST(File, WhatIsLeftToTheProgramIsWrittenAsAWord) {
    const config::LoadedConfig loaded = load_text(R"({"lora": {"r": "auto"}})", {"--learning_rate", "auto"});
    EXPECT_EQ(loaded.config.lora.r, config::auto_rank);
    EXPECT_FALSE(loaded.config.training.learning_rate);
    const std::string json = config::config_to_json(loaded.config);
    EXPECT_NE(json.find(R"("r": "auto")"), std::string::npos) << json;
    EXPECT_NE(json.find(R"("learning_rate": "auto")"), std::string::npos) << json;
    const config::LoadedConfig again = load_text(json);
    EXPECT_EQ(config::config_to_json(again.config), json);
    EXPECT_EQ(load_text("{}", {"--r", "auto"}).config.lora.r, config::auto_rank);
    EXPECT_FALSE(load_text(R"({"training": {"learning_rate": null}})").config.training.learning_rate);
}

TEST(File, RangesAreChecked) {
    EXPECT_CONTAINS(file_error(R"({"lora": {"r": 0}})"), "expected an integer >= 1 and <= 1000000, found 0");
    EXPECT_CONTAINS(file_error(R"({"lora": {"lora_dropout": 1}})"), "expected a number >= 0 and < 1, found 1");
    EXPECT_CONTAINS(file_error(R"({"lora": {"lora_alpha": 0}})"), "expected a number > 0");
    EXPECT_CONTAINS(file_error(R"({"lora": {"rank_pattern": {"a": 0}}})"), "an object of integers >= 1, found 0");
    EXPECT_CONTAINS(file_error(R"({"lora": {"layers_to_transform": [0, -1]}})"), "found -1");
    EXPECT_CONTAINS(file_error(R"({"training": {"warmup_ratio": 1.01}})"), "<= 1");
    EXPECT_CONTAINS(file_error(R"({"training": {"adam_beta1": 1.0}})"), "< 1");
    EXPECT_CONTAINS(file_error(R"({"training": {"max_steps": -2}})"), ">= -1");
    EXPECT_CONTAINS(file_error(R"({"training": {"learning_rate": 1e999}})"), "the number 1e999 is too large");
    EXPECT_EQ(load_text(R"({"training": {"warmup_ratio": 1, "max_steps": 0}})").config.training.warmup_ratio, 1);
}

TEST(File, AnUnknownChoiceListsAndSuggests) {
    const std::string message = file_error(R"({"training": {"lr_scheduler_type": "cosin"}})");
    EXPECT_CONTAINS(message, "expected one of linear, cosine,");
    EXPECT_CONTAINS(message, "Did you mean cosine?");
    EXPECT_CONTAINS(file_error(R"({"lora": {"target_modules": ["q_proj", "kproj"]}})"), "Did you mean k_proj?");
    EXPECT_CONTAINS(file_error(R"({"lora": {"modules_to_save": ["embed"]}})"), "embed_tokens");
    EXPECT_CONTAINS(file_error(R"({"logging": {"level": "verbose"}})"), "expected one of debug,");
}

// Of words that are near, one that means something else gets words of its own.
TEST(File, ValuesOfOtherProgramsHaveTheirOwnWord) {
    const auto expect = [](const std::string& section, const std::string& key, const std::string& value,
                           const std::string& words) {
        const std::string message = file_error(Json{{section, {{key, Json::parse(value)}}}}.dump());
        EXPECT_CONTAINS(message, words);
        EXPECT_FALSE(contains(message, "Did you mean")) << message;
    };
    expect("training", "objective", R"("gspo")", "It is a form of training.objective grpo");
    expect("training", "objective", R"("simpo")", "preference.loss_type");
    expect("training", "optim", R"("adafactor")", "AdamW alone is there");
    expect("training", "report_to", R"(["mlflow"])", "logging.metrics_file");
    expect("lora", "target_modules", R"(["q_proj", "lm_head"])", "lora.modules_to_save trains it as a whole");
    expect("lora", "modules_to_save", R"(["norm"])", "lora.finetuning_type full trains norms");
    expect("preference", "loss_type", R"("orpo")", "training.objective orpo");
    expect("data", "format", R"("jsonl")", "A file's kind is seen by its content");
    for (const char* far : {"gpt", "xyz", "a"})
        expect("training", "objective", Json(far).dump(), "expected one of sft");
}

TEST(Flags, BooleansStandAloneOrTakeAValue) {
    EXPECT_TRUE(config::load_config({}, {"--packing"}).config.data.packing);
    EXPECT_TRUE(config::load_config({}, {"--packing", "--r", "8"}).config.data.packing);
    EXPECT_FALSE(config::load_config({}, {"--shuffle", "false"}).config.data.shuffle);
    EXPECT_FALSE(config::load_config({}, {"--data.shuffle=no"}).config.data.shuffle);
    EXPECT_FALSE(config::load_config({}, {"--shuffle", "0"}).config.data.shuffle);
    EXPECT_CONTAINS(flag_error({"--packing=maybe"}), "expected true or false");
    EXPECT_CONTAINS(flag_error({"--packing", "maybe"}), "unexpected argument 'maybe'");
}

TEST(Flags, ListsAreJsonOrCommaSeparated) {
    const std::vector<std::string> two = {"q_proj", "v_proj"};
    EXPECT_EQ(config::load_config({}, {"--target-modules", "q_proj,v_proj"}).config.lora.target_modules, two);
    EXPECT_EQ(config::load_config({}, {"--target_modules", "q_proj, v_proj"}).config.lora.target_modules, two);
    EXPECT_EQ(config::load_config({}, {"--target_modules=[\"q_proj\", \"v_proj\"]"}).config.lora.target_modules, two);
    const std::vector<int64_t> layers = {0, 5};
    EXPECT_EQ(config::load_config({}, {"--layers_to_transform", "0,5"}).config.lora.layers_to_transform, layers);
    EXPECT_EQ(config::load_config({}, {"--layers_to_transform", "[0,5]"}).config.lora.layers_to_transform, layers);
    EXPECT_TRUE(config::load_config({}, {"--modules_to_save", ""}).config.lora.modules_to_save.empty());
    EXPECT_CONTAINS(flag_error({"--layers_to_transform", "0,x"}), "expected a list of integers");
    EXPECT_CONTAINS(flag_error({"--target_modules", "[q_proj"}), "expected JSON");
}

TEST(Flags, MapsAreJson) {
    const std::vector<std::pair<std::string, int64_t>> ranks = {{"z", 4}, {"a", 8}};
    EXPECT_EQ(config::load_config({}, {"--rank_pattern", R"({"z": 4, "a": 8})"}).config.lora.rank_pattern, ranks);
    EXPECT_CONTAINS(flag_error({"--rank_pattern", "a=4"}), "expected JSON, found 'a=4'");
}

TEST(Flags, AnObjectMayHoldAnything) {
    const std::string text = R"({"b":[1,{"c":null}],"a":false})";  // keys keep their order
    EXPECT_EQ(config::load_config({}, {"--chat_template_kwargs", text}).config.data.chat_template_kwargs, text);
    EXPECT_EQ(config::load_config({}, {}).config.data.chat_template_kwargs, "{}");
    for (const char* wrong : {"[1]", "5", "\"x\"", "null"})
        EXPECT_CONTAINS(flag_error({"--chat_template_kwargs", wrong}), "--chat_template_kwargs: expected an object");
}

TEST(Flags, ValuesMayStartWithOneDashButNotBeMissing) {
    EXPECT_EQ(config::load_config({}, {"--max_steps", "-1"}).config.training.max_steps, -1);
    EXPECT_EQ(config::load_config({}, {"--output_dir=--odd"}).config.training.output_dir, "--odd");
    EXPECT_CONTAINS(flag_error({"--r"}), "--r needs a value: an integer >= 1");
    EXPECT_CONTAINS(flag_error({"--r", "--packing"}), "--r needs a value");
}

TEST(Flags, MistakesNameTheFlagAsItWasWritten) {
    EXPECT_CONTAINS(flag_error({"--lora-r", "8"}), "unknown option --lora-r");
    EXPECT_CONTAINS(flag_error({"--lora.r", "8x"}), "--lora.r: expected an integer");
    EXPECT_CONTAINS(flag_error({"--learning_rate", "nan"}), "--learning_rate: expected a number");
    EXPECT_CONTAINS(flag_error({"--learning_rate", "inf"}), "--learning_rate: expected a number");
    EXPECT_CONTAINS(flag_error({"--learning_rate", "1e30"}), "--learning_rate: expected a number >= 0 and <= 1");
    EXPECT_CONTAINS(flag_error({"--loraplus_lr_embedding", "2"}), "<= 1");
    EXPECT_CONTAINS(flag_error({"--lerning-rate", "1"}), "Did you mean --training.learning_rate?");
    EXPECT_CONTAINS(flag_error({"--max_lenght", "1"}), "Did you mean --model.max_seq_length?");
    EXPECT_CONTAINS(flag_error({"-r", "8"}), "unknown option -r");
    EXPECT_CONTAINS(flag_error({"run.json"}), "unexpected argument 'run.json'");
}

TEST(Aliases, MaxLength) {
    EXPECT_EQ(load_text(R"({"model": {"max_length": 77}})").config.model.max_seq_length, 77);
    const auto loaded = config::load_config({}, {"--max_length", "78"});
    EXPECT_EQ(loaded.config.model.max_seq_length, 78);
    EXPECT_TRUE(loaded.is_given("model.max_seq_length"));
    const std::string both = file_error(R"({"model": {"max_length": 7, "max_seq_length": 8}})");
    EXPECT_CONTAINS(both, "model.max_length and model.max_seq_length contradict each other");
}

TEST(Aliases, GradientCheckpointingAsBooleanOrUnsloth) {
    const auto of = [](const std::string& value) {
        return load_text(R"({"training": {"gradient_checkpointing": )" + value + "}}");
    };
    EXPECT_EQ(of("true").config.training.gradient_checkpointing, config::GradientCheckpointing::full);
    EXPECT_EQ(of("false").config.training.gradient_checkpointing, config::GradientCheckpointing::none);
    EXPECT_TRUE(of("true").notes.empty());
    const auto unsloth = of("\"unsloth\"");
    EXPECT_EQ(unsloth.config.training.gradient_checkpointing, config::GradientCheckpointing::full_offload);
    EXPECT_TRUE(unsloth.notes.empty());
    EXPECT_EQ(of("\"attention+offload\"").config.training.gradient_checkpointing,
              config::GradientCheckpointing::attention_offload);

    const auto flag = [](std::vector<std::string> flags) {
        return config::load_config({}, flags).config.training.gradient_checkpointing;
    };
    EXPECT_EQ(flag({"--gradient_checkpointing"}), config::GradientCheckpointing::full);
    EXPECT_EQ(flag({"--gradient_checkpointing", "false"}), config::GradientCheckpointing::none);
    EXPECT_EQ(flag({"--gradient_checkpointing", "none"}), config::GradientCheckpointing::none);
    EXPECT_EQ(flag({"--gradient_checkpointing", "unsloth"}), config::GradientCheckpointing::full_offload);
    EXPECT_EQ(flag({"--gradient_checkpointing", "auto"}), config::GradientCheckpointing::automatic);
}

TEST(Aliases, HalfPrecisionByBoolean) {
    EXPECT_EQ(load_text(R"({"training": {"fp16": true, "bf16": false}})").config.model.dtype, spec::DType::f16);
    EXPECT_EQ(load_text(R"({"model": {"bf16": true}})", {"--dtype", "float32"}).config.model.dtype, spec::DType::f32);
    EXPECT_EQ(config::load_config({}, {"--dtype", "float32", "--fp16"}).config.model.dtype, spec::DType::f16);
    EXPECT_CONTAINS(flag_error({"--bf16", "--fp16"}), "--bf16 and --fp16 contradict each other");
    EXPECT_EQ(config::load_config({}, {"--dtype", "float32", "--bf16=false"}).config.model.dtype, spec::DType::f32);
    EXPECT_CONTAINS(file_error(R"({"training": {"fp16": true, "bf16": true}})"), "contradict each other");
    EXPECT_CONTAINS(file_error(R"({"model": {"bf16": true, "dtype": "float32"}})"), "contradict each other");
    EXPECT_CONTAINS(file_error(R"({"model": {"bf16": "yes"}})"), "expected true or false");
    EXPECT_EQ(load_text(R"({"model": {"dtype": "bfloat16"}, "training": {"bf16": true}})").config.model.dtype,
              spec::DType::bf16);
}

TEST(Aliases, LearningRateAsText) {
    EXPECT_EQ(load_text(R"({"training": {"learning_rate": "2e-5"}})").config.training.learning_rate, 2e-5);
    EXPECT_EQ(config::load_config({}, {"--learning_rate", "3e-5"}).config.training.learning_rate, 3e-5);
    EXPECT_CONTAINS(file_error(R"({"training": {"learning_rate": "fast"}})"), "expected a number");
    EXPECT_CONTAINS(file_error(R"({"training": {"learning_rate": "-1"}})"), ">= 0");
}

TEST(Aliases, LogLevel) {
    EXPECT_EQ(config::load_config({}, {"--log_level", "debug"}).config.logging.level, "debug");
    EXPECT_EQ(config::load_config({}, {"--level", "error"}).config.logging.level, "error");
}

TEST(Names, FormerOnesAreStillRead) {
    struct Renamed {
        const char *section, *former, *present;
        Json value, other;
    };
    const std::vector<Renamed> all = {
        {"training", "keep_inputs_in", "activation_offload_dtype", "fp8", "same"},
        {"training", "micro_batch", "auto_micro_batch", "as_given", "auto"},
        {"hardware", "weight_cache", "dequantized_weights", "on", "off"},
        {"data", "long_rows", "overflow_strategy", "drop", "split"},
        {"data", "skip_bad_rows", "skip_invalid", true, false},
    };
    for (const Renamed& one : all) {
        const std::string section = one.section, present = section + "." + one.present,
                          former = section + "." + one.former;
        const auto file = [&](const Json& options) { return Json{{section, options}}.dump(); };
        const std::string wanted = config::config_to_json(load_text(file({{one.present, one.value}})).config);
        EXPECT_EQ(Json::parse(wanted).at(section).at(one.present), one.value) << wanted;
        EXPECT_EQ(config::config_to_json(load_text(file({{one.former, one.value}})).config), wanted);
        const std::string text = one.value.is_string() ? one.value.get<std::string>() : one.value.dump(),
                          other = one.other.is_string() ? one.other.get<std::string>() : one.other.dump();
        for (const std::string& flag : {"--" + former, "--" + std::string(one.former), "--" + present})
            EXPECT_EQ(config::config_to_json(config::load_config({}, {flag, text}).config), wanted) << flag;

        // Both names may be given where they agree.
        load_text(file({{one.former, one.value}, {one.present, one.value}}));
        EXPECT_CONTAINS(file_error(file({{one.former, one.value}, {one.present, one.other}})), "contradict each other");
        config::load_config({}, {"--" + former, text, "--" + present, text});
        EXPECT_CONTAINS(flag_error({"--" + former, text, "--" + present, other}),
                        "--" + former + " and --" + present + " contradict each other");
        EXPECT_EQ(Json::parse(config::with_present_names(file({{one.former, one.value}}))).at(section),
                  Json({{one.present, one.value}}));
    }
    EXPECT_EQ(load_text(R"({"training": {"auto_micro_batch": false}})").config.training.micro_batch,
              config::PassRows::as_given);
}

}  // namespace
}  // namespace unsloth::testing
