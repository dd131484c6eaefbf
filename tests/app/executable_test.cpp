// The executable as a subprocess: exit codes, streams, and how it meets its engine. Skipped when only this module was
// built and there is no executable.
#include <sys/wait.h>

#include <cstdlib>
#include <sstream>

#include "app/command_line/command_line.h"
#include "common/files.h"
#include "tests/config/support.h"
#include "unsloth/core/version.h"

namespace unsloth::testing {
namespace {

namespace fs = std::filesystem;

const fs::path built_executable = test::binary_folder() / "unsloth-train";
constexpr const char* base_library = "libunsloth_base.so";

struct Outcome {
    int exit_code = -1;
    std::string out, err;
};

std::string read_text(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

Outcome run(const fs::path& executable, const std::string& arguments) {
    const ScratchFolder folder;
    const fs::path out = folder.path() / "out", err = folder.path() / "err";
    const std::string command =
        executable.string() + " " + arguments + " </dev/null >" + out.string() + " 2>" + err.string();
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out), read_text(err)};
}

class Executable : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!fs::exists(built_executable)) GTEST_SKIP() << "no " << built_executable << " in this build";
    }
};

TEST_F(Executable, PrintsVersionAndHelp) {
    const Outcome version_line = run(built_executable, "--version");
    EXPECT_EQ(version_line.exit_code, 0);
    EXPECT_TRUE(version_line.out.starts_with(std::string("unsloth-train ") + version + "\n")) << version_line.out;
    EXPECT_CONTAINS(version_line.out, "\n  compiler ");
    const Outcome help = run(built_executable, "--help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_CONTAINS(help.out, "--lora.lora_alpha X");
    EXPECT_EQ(help.err, "");
    EXPECT_EQ(run(built_executable, "help init").exit_code, 0);
}

TEST_F(Executable, PrintsConfigurationSchemaAndReference) {
    const Outcome config = run(built_executable, "config --r 4 --gradient_checkpointing unsloth");
    EXPECT_EQ(config.exit_code, 0);
    EXPECT_EQ(Json::parse(config.out).at("lora").at("r"), 4);
    EXPECT_EQ(Json::parse(config.out).at("training").at("gradient_checkpointing"), "full+offload");
    EXPECT_EQ(run(built_executable, "config --schema").out, config::config_schema());
    EXPECT_EQ(run(built_executable, "config --markdown").out, app::options_markdown());
}

TEST_F(Executable, UsageMistakesEndWithTwoAndSayOneThing) {
    for (const char* arguments : {"", "--lerning_rate 1", "trian", "--config /nonexistent.json", "config --r 0"}) {
        const Outcome outcome = run(built_executable, arguments);
        EXPECT_EQ(outcome.exit_code, 2) << arguments;
        EXPECT_EQ(outcome.out, "") << arguments;
        EXPECT_TRUE(outcome.err.starts_with("unsloth-train: error[")) << outcome.err;
    }
}

TEST_F(Executable, MissingInputsEndWithThree) {
    EXPECT_EQ(run(built_executable, "inspect /nonexistent/model").exit_code, 3);
    EXPECT_EQ(run(built_executable, "tokenize --tokenizer /nonexistent/model").exit_code, 3);
}

TEST_F(Executable, AFullDiskIsNoSuccess) {
    if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
    const int status = std::system((built_executable.string() + " config >/dev/full 2>/dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 4);
}

/// A copy of the executable in a folder of its own, beside whatever engine the test puts there.
class ExecutableAlone : public Executable {
  protected:
    void SetUp() override {
        Executable::SetUp();
        if (IsSkipped()) return;
        fs::copy_file(built_executable, executable());
        fs::copy_file(test::binary_folder() / base_library, folder_.path() / base_library);
        using namespace std::string_literals;
        folder_.write("m/model.safetensors", "\x8\0\0\0\0\0\0\0{}      "s);
        folder_.write("t.jsonl", "{}");
    }
    std::string model() const { return " --path " + (folder_.path() / "m").string() + " "; }
    std::string rows() const { return " --train_file " + (folder_.path() / "t.jsonl").string() + " "; }
    fs::path executable() const { return folder_.path() / "unsloth-train"; }
    fs::path engine() const { return folder_.path() / "libunsloth_engine.so"; }
    Outcome train(const std::string& more) const { return run(executable(), model() + rows() + more); }

    const ScratchFolder folder_;
};

TEST_F(ExecutableAlone, WithoutItsEngineItStillConfiguresAndSaysWhatIsMissing) {
    EXPECT_EQ(run(executable(), "--help").exit_code, 0);
    EXPECT_EQ(run(executable(), "config").exit_code, 0);
    const Outcome outcome = train("");
    EXPECT_EQ(outcome.exit_code, 4);
    EXPECT_CONTAINS(outcome.err, engine().string() + " is missing");
    EXPECT_CONTAINS(outcome.err, "scripts/build.sh");
}

// Opening it takes longer than looking at the paths.
TEST_F(ExecutableAlone, PathsAreLookedAtBeforeTheEngineIsOpened) {
    const auto refused = [&](const std::string& command, const char* words) {
        const Outcome outcome = run(executable(), command);
        EXPECT_EQ(outcome.exit_code, 3) << command << "\n" << outcome.err;
        EXPECT_CONTAINS(outcome.err, words);
    };
    for (const std::string& command :
         {"train" + rows(), "score --out o.jsonl" + rows(), std::string("evaluate --eval_file t"),
          std::string("generate --prompt p"), std::string("generate --chat")})
        refused(command + " --path /no/model", "/no/model: no such file or folder");
    for (const std::string& command : {"train" + rows(), std::string("generate --prompt p")})
        refused(command + model() + "--adapter_name_or_path /no/adapter", "/no/adapter: no such file or folder");
    refused("generate --file f --adapter a=/no/adapter", "/no/adapter: no such file or folder");
    for (const char* command : {"train --train_file", "score --out o.jsonl --train_file", "evaluate --eval_file"})
        refused(command + std::string(" /no/rows.jsonl") + model(), "cannot open /no/rows.jsonl");
    refused("generate --file /no/prompts.jsonl" + model(), "/no/prompts.jsonl");
    refused("replay /no/step-1.json", "/no/step-1.json");
    refused("train --sample_prompts /no/prompts.jsonl" + rows() + model(), "/no/prompts.jsonl");
}

TEST_F(ExecutableAlone, FilesToWriteAreLookedAtBeforeTheWork) {
    const std::string nowhere = (folder_.path() / "no/where").string(), here = folder_.path().string();
    const std::string inputs = " --path /no/model --train_file /no/rows.jsonl ";  // which would be found out next
    for (const std::string& command :
         {"score" + inputs + "--out ", "score" + inputs + "--out " + here + "/o --logits ",
          std::string("evaluate --path /no/model --eval_file t --metric exact_match --answers "),
          std::string("tune --path /no/model --out "), std::string("plan --path /no/model --svg "),
          std::string("import-config /no/config.yaml --out "), std::string("report /no/run --out "),
          std::string("report /no/run --svg "), std::string("data augment --in /no/rows.jsonl --out "),
          std::string("export gguf --model.path /no/model --out ")}) {
        const Outcome missing = run(executable(), command + nowhere), folder = run(executable(), command + here);
        EXPECT_EQ(missing.exit_code, 4) << command << missing.err;
        EXPECT_CONTAINS(missing.err, "cannot create " + nowhere + ": ");
        EXPECT_CONTAINS(missing.err, "There is no folder " + (folder_.path() / "no").string());
        EXPECT_EQ(folder.exit_code, 4) << command << folder.err;
        EXPECT_CONTAINS(folder.err, "cannot create " + here + ": it is a folder");
    }
    const std::string file = (folder_.path() / "t.jsonl").string();
    const Outcome input = run(executable(), "score --path /no/model --out " + file + rows());
    EXPECT_EQ(input.exit_code, 2);
    EXPECT_CONTAINS(input.err, "--out " + file + " is the file that --data.train_file names");
    EXPECT_EQ(read_text(file), "{}");
    const Outcome twice = run(executable(), "score --out a --logits ./a" + inputs);
    EXPECT_CONTAINS(twice.err, "is the file that --out names");
    for (const auto& entry : fs::directory_iterator(folder_.path()))
        EXPECT_FALSE(contains(entry.path().string(), ".tmp-")) << entry.path();
}

TEST_F(ExecutableAlone, ABrokenEngineIsReported) {
    folder_.write("libunsloth_engine.so", "no library at all");
    const Outcome outcome = train("");
    EXPECT_EQ(outcome.exit_code, 4);
    EXPECT_CONTAINS(outcome.err, "cannot load the engine");
}

/// Compiles the fake engine once, against the base library of this build.
class ExecutableWithEngine : public ExecutableAlone {
  protected:
    void SetUp() override {
        ExecutableAlone::SetUp();
        if (IsSkipped()) return;
        static const ScratchFolder built;
        static const bool compiles = compile(built.path() / "engine.so", "");
        if (!compiles) GTEST_SKIP() << "no C++ compiler called c++ here";
        fs::copy_file(built.path() / "engine.so", engine());
    }

    static bool compile(const fs::path& target, const std::string& more) {
        const std::string source = (test::source_folder() / "tests/app/fake_engine/engine.cpp").string();
        const std::string command = "c++ -std=c++20 -shared -fPIC -I" + (test::source_folder() / "include ").string() +
                                    source + " -o " + target.string() + " -L" + test::binary_folder().string() +
                                    " -lunsloth_base " + more + " 2>/dev/null";
        return std::system(command.c_str()) == 0;
    }
};

TEST_F(ExecutableWithEngine, ErrorsOfTheEngineBecomeExitCodes) {
    EXPECT_EQ(train("--output_dir fine").exit_code, 0);
    EXPECT_EQ(train("--output_dir usage").exit_code, 2);
    EXPECT_EQ(train("--output_dir runtime").exit_code, 4);
    const Outcome input = train("--output_dir input");
    EXPECT_EQ(input.exit_code, 3);
    EXPECT_EQ(input.err, "unsloth-train: error[data.empty]: input from the engine\n  Advice.\n");
    const Outcome check = train("--output_dir check");
    EXPECT_EQ(check.exit_code, 4);
    EXPECT_CONTAINS(check.err, "internal error: ");
    EXPECT_CONTAINS(check.err, "Please report");
    const Outcome memory = train("--output_dir memory");
    EXPECT_EQ(memory.exit_code, 4);
    EXPECT_CONTAINS(memory.err, "error[memory.host-full]: out of host memory");
}

TEST_F(ExecutableWithEngine, TheAllocatorsSettingsAreThereBeforeLibTorch) {
    ::setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False", 1);
    EXPECT_EQ(train("--output_dir allocator --allocator low_memory").out, "expandable_segments:True, alone\n");
    ::unsetenv("PYTORCH_ALLOC_CONF");
    ::setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", 1);
    EXPECT_EQ(train("--output_dir allocator").out, "max_split_size_mb:64, alone\n");
    ::unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

TEST_F(ExecutableWithEngine, StackTracesOfLibrariesAreShownOnlyForDebugging) {
    const Outcome brief = train("--output_dir foreign");
    EXPECT_EQ(brief.exit_code, 4);
    EXPECT_CONTAINS(brief.err, "error[library.failed]: first line\n");
    EXPECT_FALSE(contains(brief.err, "frame #0")) << brief.err;
    EXPECT_CONTAINS(train("--output_dir foreign --log_level debug").err, "frame #0");
}

TEST_F(ExecutableWithEngine, SignalsEndWithTheShellsCodesAfterSaving) {
    const Outcome interrupted = train("--output_dir sigint");
    EXPECT_EQ(interrupted.exit_code, 130);
    EXPECT_CONTAINS(interrupted.err, "saved the adapter");
    EXPECT_EQ(train("--output_dir sigterm").exit_code, 143);
}

TEST_F(ExecutableWithEngine, EveryCommandReachesItsCall) {
    const std::string out = (folder_.path() / "o.jsonl").string();
    EXPECT_EQ(run(executable(), "score" + model() + rows() + "--out " + out).out, "score " + out + "\n");
    EXPECT_EQ(run(executable(), "generate --prompt hello" + model()).out, "generate hello\n");
    EXPECT_EQ(run(executable(), "bench ops --batch 3").out, "bench 3\n");
    EXPECT_EQ(run(executable(), "plan --path m --gpu H200").out, "plan H200\n");
    EXPECT_EQ(run(executable(), "plan --path m --gpu 'too small'").exit_code, 4) << "a plan that does not fit";
}

/// `bench --check` of rows whose shares the fake engine takes from their batch.
class Floors : public ExecutableWithEngine {
  protected:
    Outcome check(const std::string& cards, const std::string& more = "--path m") const {
        const std::string rows = R"("half": {"bench": "step", "config": "a/b.json", "batch": 50},
            "all of it": {"bench": "step", "batch": 100, "hardware.device": "cpu"},
            "odd": {"bench": "ops", "batch": 80}, "large": {"bench": "step", "batch": 90, "seq": 13})";
        return check_text("{\"rows\": {" + rows + "}, \"cards\": {" + cards + "}}", more);
    }
    Outcome check_text(const std::string& text, const std::string& more = "--path m") const {
        folder_.write("floors/a/b.json", R"({"model": {"max_seq_length": 12}})");
        const std::string file = folder_.write("floors/floors.json", text).string();
        return run(executable(), "bench --check --floors " + file + " " + more);
    }
};

TEST_F(Floors, RowsAtTheirFloorPass) {
    const Outcome outcome = check(R"("Fake Card": {"floors": {"half": 0.5, "all of it": 0, "odd: rope": 0.79}})");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "50.0 %   50.0 %\n");
    EXPECT_CONTAINS(outcome.out, "odd: odd ");
    EXPECT_CONTAINS(outcome.out, "no floor for this card\n");
    EXPECT_CONTAINS(outcome.out, "large: did not run: no memory for it\n") << "a row without a floor may be too large";
    EXPECT_CONTAINS(outcome.out, "all of 3 figures with a floor on Fake Card reach it\n");
    EXPECT_EQ(outcome.err, "");
}

TEST_F(Floors, WhatIsBelowIsNamedWithItsShareAndWhatIsSeen) {
    const Outcome outcome =
        check(R"("Fake Card": {"floors": {"half": 0.501, "all of it": 1, "odd: odd": 0, "large": 0.1}})");
    EXPECT_EQ(outcome.exit_code, 4);
    EXPECT_CONTAINS(outcome.err,
                    "below the floor on Fake Card: half (50.0 % of its ceiling, floor 50.1 %), odd: odd (");
    EXPECT_CONTAINS(outcome.err, "), large (did not run)\n");
    EXPECT_CONTAINS(outcome.err, "Products without measured kernels here: qkv (unsloth-train tune).\n");
    EXPECT_FALSE(contains(outcome.err, "all of it")) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "50.0 %   50.1 %  BELOW\n");
    const Outcome above_one = check(R"("Fake Card": {"floors": {"all of it": 1.001}})");
    EXPECT_EQ(above_one.exit_code, 4);
    EXPECT_CONTAINS(above_one.err, "all of it (100.0 % of its ceiling, floor 100.1 %)");
}

TEST_F(Floors, JsonHasALineAFigure) {
    const Outcome outcome = check(R"("Fake Card": {"floors": {"half": 0.6}})", "--path m --json");
    EXPECT_EQ(outcome.exit_code, 4);
    std::istringstream lines(outcome.out);
    std::vector<Json> rows;
    for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
    ASSERT_EQ(rows.size(), 5U) << outcome.out;
    EXPECT_EQ(rows[0], Json::parse(R"({"bench": "check", "row": "half", "card": "Fake Card", "rate": 500.0, "unit":
        "tokens/s", "ceiling": 1000.0, "share": 0.5, "floor": 0.6, "below": true})"));
    EXPECT_TRUE(rows[1]["floor"].is_null() && rows[1]["below"].is_null());
    EXPECT_EQ(rows[4]["error"], "no memory for it");
    EXPECT_EQ(rows[4]["error_id"], "memory.device-full");
}

TEST_F(Floors, ACardWithoutFloorsIsNoSuccess) {
    const Outcome outcome = check(R"("NVIDIA H200": {"floors": {"half": 0.1}})", "--path 'New Card'");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_CONTAINS(outcome.err, "nothing was checked: none of these rows has a floor for New Card");
    EXPECT_CONTAINS(outcome.err, "NVIDIA H200");
    EXPECT_CONTAINS(outcome.err, R"({"New Card":{"source":"","floors":{"half":0.485,"all of it":0.97,)");
    EXPECT_EQ(check(R"("Fake Card": {"floors": {"half": 0.1}})", "--path m --rows odd").exit_code, 2);
}

TEST_F(Floors, OnlyTheRowsThatAreAskedForAreRun) {
    const std::string floors = R"("Fake Card": {"floors": {"half": 0.9, "all of it": 0.9}})";
    EXPECT_EQ(check(floors, "--path m --rows 'all of it'").exit_code, 0);
    const Outcome unknown = check(floors, "--path m --rows hlf");
    EXPECT_EQ(unknown.exit_code, 2);
    EXPECT_CONTAINS(unknown.err, "has no row 'hlf'; it has half, all of it, odd, large");
    EXPECT_CONTAINS(unknown.err, "Did you mean half?");
    EXPECT_EQ(check(floors, "--path m --rows large").exit_code, 4) << "no row ran";
    EXPECT_EQ(check(floors, "--path m --rows half --batch 95").exit_code, 0) << "options given win over a row's";
}

TEST_F(Floors, AFileThatIsWrongIsRefusedBeforeAnythingIsRun) {
    const std::string rows = R"("rows": {"r": {"bench": "step", "batch": 50}}, "cards": {"Fake Card": {"floors": )";
    const auto refused = [&](const std::string& text, int code, const std::string& word) {
        const Outcome outcome = check_text(text);
        EXPECT_EQ(outcome.exit_code, code) << text;
        EXPECT_EQ(outcome.out, "") << text;
        EXPECT_CONTAINS(outcome.err, word);
        EXPECT_CONTAINS(outcome.err, "floors.json");
    };
    refused("{" + rows + R"({"r": NaN}}}})", 3, "NaN is no number of JSON");
    refused("{" + rows + R"({"r": 1e999}}}})", 3, "the number 1e999 is too large");
    refused("{" + rows + R"({"r": "0.5"}}}})", 3, "expected a finite number");
    refused("{" + rows + R"({"r": null}}}})", 3, "'r' is missing");
    refused("{" + rows + R"({"r": -0.1}}}})", 3, "expected a share from 0 on");
    refused("{" + rows + R"({"other": 0.1}}}})", 3, "there is no row 'other'");
    refused(R"({"rows": {}, "cards": {}})", 3, "expected an object of rows");
    refused(R"({"rows": [], "cards": {}})", 3, "rows");
    refused(R"({"rows": {"r": {"batch": 5}}, "cards": {}})", 3, "'bench' is missing");
    refused(R"({"rows": {"r: s": {"bench": "ops"}}, "cards": {}})", 3, "no colon");
    refused(R"({"rows": {"r": {"bench": "ops", "batch": []}}, "cards": {}})", 3, "batch");
    refused(R"({"rows": {"r": {"bench": "stp"}}, "cards": {}})", 2, "Did you mean step?");
    refused(R"({"rows": {"r": {"bench": "ops", "bacth": 5}}, "cards": {}})", 2, "unknown option --bacth");
    refused(R"({"rows": {"r": {"bench": "step"}}, "cards": {}, "card": {}})", 3, "card");
    EXPECT_EQ(run(executable(), "bench --check --floors /nonexistent.json").exit_code, 3);
    const Outcome ranks = run("WORLD_SIZE=2 " + executable().string(), "bench --check");
    EXPECT_EQ(ranks.exit_code, 2);
    EXPECT_CONTAINS(ranks.err, "--check runs in one process");
    const Outcome elsewhere = run("cd " + folder_.path().string() + "; " + executable().string(), "bench --check");
    EXPECT_EQ(elsewhere.exit_code, 2);
    EXPECT_CONTAINS(elsewhere.err, "no configs/floors/llama-8b.json in this folder\n  Run it in the project's folder");
    EXPECT_CONTAINS(check("", "--path m step").err, "--check or what to measure, not both");
    EXPECT_CONTAINS(check("", "--path m --config " + (folder_.path() / "floors/a/b.json").string()).err,
                    "and no --config");
    const Outcome figure = check(R"("Fake Card": {"floors": {"half": 0.1, "odd: rop": 0.1}})");
    EXPECT_EQ(figure.exit_code, 3);
    EXPECT_CONTAINS(figure.err, "a floor of 'odd: rop', and the row has no such figure");
}

TEST_F(ExecutableWithEngine, AMissingDependencyOfTheEngineIsNamed) {
    // A dependency that exists while linking and is gone afterwards.
    const std::string folder = folder_.path().string();
    const std::string dependency = "echo 'int x;' | c++ -x c++ - -shared -fPIC -o " + folder + "/libgone.so.7";
    ASSERT_EQ(std::system(dependency.c_str()), 0);
    fs::remove(engine());
    ASSERT_TRUE(compile(engine(), "-Wl,--no-as-needed " + folder + "/libgone.so.7 -Wl,-soname,x"));
    fs::remove(folder_.path() / "libgone.so.7");
    const Outcome outcome = train("");
    EXPECT_EQ(outcome.exit_code, 4);
    EXPECT_CONTAINS(outcome.err, "libgone.so.7, which was not found");
    EXPECT_CONTAINS(outcome.err, "LD_LIBRARY_PATH");
    EXPECT_CONTAINS(outcome.err, "scripts/setup.sh");
}

}  // namespace
}  // namespace unsloth::testing
