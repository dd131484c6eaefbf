#include "unsloth/formats/result_folder.h"

#include <algorithm>

#include "formats/support.h"

namespace unsloth::formats {
namespace {

using namespace test;

constexpr const char* model_config = R"({"model_type": "llama"})";

class ResultFolder : public ::testing::Test {
  protected:
    void put(std::initializer_list<const char*> names) const {
        for (const char* name : names)
            scratch.write(name, std::string_view(name).ends_with("config.json") ? model_config : "{}");
    }
    std::string what() const {
        const auto held = find_result(scratch.path());
        return held ? held->what : "nothing";
    }
    std::vector<std::string> weights() const { return sorted(result_entries(scratch.path()).weights); }
    std::vector<std::string> state() const { return sorted(result_entries(scratch.path()).state); }
    static std::vector<std::string> sorted(std::vector<std::string> names) {
        std::ranges::sort(names);
        return names;
    }

    ScratchFolder scratch;
};

TEST_F(ResultFolder, HoldsNothingOfNotesAndLogs) {
    put({"README.md", "train.log", "runs/notes.txt", "teacher.safetensors", "vocab.bin", "tokenizer.json"});
    scratch.write("config.json", R"({"training": {"output_dir": "."}})");
    EXPECT_EQ(what(), "nothing");
    EXPECT_EQ(weights().size() + state().size(), 0U);
    EXPECT_TRUE(has_foreign_config(scratch.path()));
}

TEST_F(ResultFolder, KnowsAnAdapterOfAnotherProgram) {
    put({"adapter_config.json", "adapter_model.safetensors", "README.md"});
    EXPECT_EQ(what(), "a PEFT adapter (adapter_model.safetensors)");
    EXPECT_FALSE(find_result(scratch.path())->ours);
    EXPECT_EQ(weights_option(scratch.path()), "model.adapter_name_or_path " + scratch.path().string());
    EXPECT_EQ(weights(), (std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors"}));
}

TEST_F(ResultFolder, KnowsAModelOfAnotherProgram) {
    put({"config.json"});
    EXPECT_EQ(what(), "a model's config.json");
    put({"model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "notes.json"});
    EXPECT_EQ(what().substr(0, 8), "a model ");
    EXPECT_FALSE(has_foreign_config(scratch.path()));
    EXPECT_EQ(weights(), (std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                                   "model.safetensors.index.json", "pytorch_model.bin"}));
}

TEST_F(ResultFolder, KnowsCheckpointsOfTransformersTrainer) {
    put({"checkpoint-3/adapter_config.json", "checkpoint-3/trainer_state.json", "checkpoint-3/optimizer.pt",
         "checkpoint-12/adapter_config.json", "checkpoint-12/trainer_state.json"});
    EXPECT_EQ(what(), "a checkpoint of transformers' Trainer (checkpoint-12)");
    const HeldResult held = find_result(scratch.path()).value();
    EXPECT_FALSE(held.ours || held.resumable);
    EXPECT_EQ(held.weights, scratch / "checkpoint-12");
    EXPECT_EQ(state(), (std::vector<std::string>{"checkpoint-12", "checkpoint-3"}));
}

TEST_F(ResultFolder, KnowsRunsOfThisProgram) {
    put({"run_config.json", "adapter_config.json", "adapter_model.safetensors"});
    EXPECT_EQ(what(), "nothing") << "a run was killed while it saved its result";
    put({"trainer_state.json"});
    EXPECT_EQ(what(), "a run");
    EXPECT_FALSE(find_result(scratch.path())->resumable);
    put({"checkpoint-3/manifest.json", "checkpoint-3/trainer_state.json"});
    EXPECT_TRUE(find_result(scratch.path())->resumable);
    EXPECT_FALSE(is_trainer_checkpoint(scratch / "checkpoint-3"));
}

}  // namespace
}  // namespace unsloth::formats
