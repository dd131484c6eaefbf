// The executable as a subprocess: exit codes, streams, and how it meets its engine. Skipped when only this module was
// built and there is no executable.
#include <sys/wait.h>

#include <cstdlib>
#include <sstream>

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
    EXPECT_EQ(run(built_executable, "config --markdown").out, config::options_markdown());
}

TEST_F(Executable, UsageMistakesEndWithTwoAndSayOneThing) {
    for (const char* arguments : {"", "--lerning_rate 1", "trian", "--config /nonexistent.json", "config --r 0"}) {
        const Outcome outcome = run(built_executable, arguments);
        EXPECT_EQ(outcome.exit_code, 2) << arguments;
        EXPECT_EQ(outcome.out, "") << arguments;
        EXPECT_TRUE(outcome.err.starts_with("unsloth-train: error: ")) << outcome.err;
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
    }
    fs::path executable() const { return folder_.path() / "unsloth-train"; }
    fs::path engine() const { return folder_.path() / "libunsloth_engine.so"; }
    Outcome train(const std::string& more) const { return run(executable(), "--path m --train_file t " + more); }

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
        const std::string source = (test::source_folder() / "tests/config/fake_engine/engine.cpp").string();
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
    EXPECT_EQ(input.err, "unsloth-train: error: input from the engine\n  Advice.\n");
    const Outcome check = train("--output_dir check");
    EXPECT_EQ(check.exit_code, 4);
    EXPECT_CONTAINS(check.err, "internal error: ");
    EXPECT_CONTAINS(check.err, "please report");
    const Outcome memory = train("--output_dir memory");
    EXPECT_EQ(memory.exit_code, 4);
    EXPECT_CONTAINS(memory.err, "out of host memory");
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
    EXPECT_CONTAINS(brief.err, "error: first line\n");
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
    EXPECT_EQ(run(executable(), "score --path m --train_file t --out o.jsonl").out, "score o.jsonl\n");
    EXPECT_EQ(run(executable(), "generate --path m --prompt hello").out, "generate hello\n");
    EXPECT_EQ(run(executable(), "bench ops --batch 3").out, "bench 3\n");
    EXPECT_EQ(run(executable(), "plan --path m --gpu H200").out, "plan H200\n");
    EXPECT_EQ(run(executable(), "plan --path m --gpu 'too small'").exit_code, 4) << "a plan that does not fit";
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
