// Every file of the fuzz targets' corpora and seeds (the line "// seeds:" of a target) goes through its target.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "unsloth/core/files.h"
#include "unsloth/core/log.h"

#define TARGET(name) extern "C" int fuzz_##name(const uint8_t*, std::size_t);
#include "targets.inc"
#undef TARGET

/// libFuzzer's, for the custom mutator of a target, which is not called here.
extern "C" std::size_t LLVMFuzzerMutate(uint8_t*, std::size_t size, std::size_t) {
    return size;
}

namespace unsloth {
namespace {

namespace fs = std::filesystem;

struct Target {
    const char* name;
    int (*run)(const uint8_t*, std::size_t);
};

constexpr Target targets[] = {
#define TARGET(name) {#name, fuzz_##name},
#include "targets.inc"
#undef TARGET
};

/// The folders of a target's files, and the most bytes that libFuzzer gives it.
struct Inputs {
    std::vector<fs::path> folders;
    std::size_t most = 4096;
};

Inputs inputs_of(const std::string& target) {
    const fs::path fuzz = fs::path(UNSLOTH_SOURCE_DIR) / "tests/fuzz";
    Inputs inputs{{fuzz / "corpus" / target}};
    std::ifstream source(fuzz / (target + ".cpp"));
    for (std::string line; std::getline(source, line) && line.starts_with("//");) {
        std::istringstream words(line);
        std::string slashes, key;
        words >> slashes >> key;
        for (std::string word; words >> word;) {
            if (key == "seeds:") inputs.folders.push_back(fs::path(UNSLOTH_SOURCE_DIR) / word);
            if (key == "options:" && word.starts_with("-max_len=")) inputs.most = std::stoul(word.substr(9));
        }
    }
    return inputs;
}

class Corpora : public testing::TestWithParam<Target> {};

TEST_P(Corpora, GoesThrough) {
    log::set_level(log::Level::off);
    const Inputs inputs = inputs_of(GetParam().name);
    for (const fs::path& folder : inputs.folders) {
        if (!fs::exists(folder)) continue;  // a target without findings has no corpus
        for (const auto& entry : fs::recursive_directory_iterator(folder)) {
            if (!entry.is_regular_file()) continue;
            std::string text = read_file(entry.path());
            text.resize(std::min(text.size(), inputs.most));
            SCOPED_TRACE(entry.path().string());
            EXPECT_EQ(GetParam().run(reinterpret_cast<const uint8_t*>(text.data()), text.size()), 0);
        }
    }
}

TEST_P(Corpora, TakesNothing) {
    log::set_level(log::Level::off);
    EXPECT_EQ(GetParam().run(reinterpret_cast<const uint8_t*>(""), 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpora, testing::ValuesIn(targets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace unsloth
