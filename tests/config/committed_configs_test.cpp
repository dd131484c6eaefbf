// The configurations in configs/ are what they say: each loads without a note.
#include <gtest/gtest.h>

#include <filesystem>

#include "common/files.h"
#include "unsloth/config/load.h"

namespace unsloth::config {
namespace {

TEST(CommittedConfigs, Load) {
    int loaded = 0;
    for (const auto& entry : std::filesystem::directory_iterator(test::source_folder() / "configs/llama-8b")) {
        if (entry.path().extension() != ".json") continue;
        SCOPED_TRACE(entry.path().filename());
        const LoadedConfig config = load_config(entry.path(), {});
        EXPECT_TRUE(config.notes.empty()) << config.notes.front();
        EXPECT_EQ(config.config.lora.r, 16);
        ++loaded;
    }
    EXPECT_GE(loaded, 9);
}

}  // namespace
}  // namespace unsloth::config
