// The commands: which one is meant, what it carries, and what is missing.
#include "app/command_line/command_line.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include "app/command_line_support.h"

namespace unsloth::testing {
namespace {

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

}  // namespace
}  // namespace unsloth::testing
