// DoRA in runs: what the reference trajectory (trajectory_test.cpp) and the step's matrix do not show.
#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

Flags flags_of(const ScratchFolder& folder, const std::string& base) {
    write_rows(folder / "rows.jsonl", reference_rows("dora"));
    return {"--model.path",
            model_folder(base).string(),
            "--data.train_file",
            (folder / "rows.jsonl").string(),
            "--training.output_dir",
            (folder / "out").string(),
            "--lora.use_dora",
            "true",
            "--lora.r",
            "4",
            "--training.max_steps",
            "2"};
}

// 4-bit rows, rows quantised while loading, and a 16-bit base: norms are of the values that products see.
TEST(DoraRun, ANewAdapterHasTheBasesNormsAndChangesNothing) {
    UNSLOTH_NEEDS_XZ();
    for (const auto& [base, in_4bit] : std::vector<std::pair<std::string, std::string>>{
             {"tiny_llama/nf4_dq", "true"}, {"small_llama/bf16", "true"}, {"small_llama/bf16", "false"}}) {
        SCOPED_TRACE(base + " " + in_4bit);
        const ScratchFolder folder;
        train::Trainer trainer(make_config(flags_of(folder, base) + Flags{"--model.load_in_4bit", in_4bit}));
        trainer.load();
        model::Model& model = trainer.model();
        const data::Batch batch = trainer.loader().step(0).micro[0];
        const at::Tensor with = model.score(batch), without = model.score(batch, {}, model::PolicyScope::base);
        EXPECT_LE(max_abs(with, without), 2e-5);
        // Twice the magnitude is twice the output: the scale is there.
        for (const weights::Parameter& p : model.parameters()->table().parameters())
            if (p.kind == weights::Parameter::Kind::magnitude) model.parameters()->value(p).mul_(2);
        model.parameters_changed();
        EXPECT_GT(max_abs(model.score(batch), without), 1e-2);
        EXPECT_TRUE(same_bits(model.score(batch, {}, model::PolicyScope::base), without));
    }
}

TEST(DoraRun, KeepsWhatIsSavedAndGoesOnFromIt) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    const Flags flags = flags_of(folder, "tiny_llama/nf4_dq") + Flags{"--training.learning_rate", "0.01"};
    train::Trainer(make_config(flags)).run();
    train::Trainer again(make_config(flags + Flags{"--model.adapter_name_or_path", (folder / "out").string(),
                                                   "--training.output_dir", (folder / "next").string()}));
    again.load();
    const Tensors saved = read_tensors(folder / "out/adapter_model.safetensors");
    expect_same_bits(copy_values(*again.model().parameters()), saved);
    int magnitudes = 0;
    for (const auto& [name, tensor] : saved) magnitudes += name.ends_with(".lora_magnitude_vector");
    EXPECT_GT(magnitudes, 0);
}

TEST(DoraRun, RefusesWhatItDoesNotGoWith) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    const auto refused = [&](const Flags& flags, const std::string& word) {
        try {
            train::Trainer trainer(make_config(flags_of(folder, "tiny_llama/nf4_dq") + flags));
            ADD_FAILURE() << "not refused: " << word;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    };
    refused({"--lora.lora_dropout", "0.1"}, "lora.lora_dropout");
    refused({"--model.compute_dtype", "fp8_both"}, "use_dora");
}

}  // namespace
}  // namespace unsloth
