// Folders of model families: merged, quantised and saved again.
#include "train/families_support.h"

namespace unsloth {
namespace {

using namespace test;

TEST(Families, MergeWhatTheyComputeWithAnAdapter) {
    UNSLOTH_NEEDS_XZ();
    for (const std::string& family : families)
        for (const fs::path& run : family_runs(family)) {
            const fs::path model = unpacked(family_set(family) / "model"), adapter = unpacked(run / "initial");
            const ScratchFolder folder;
            merge_family(model, adapter, folder / "merged", spec::WeightType::f32);
            const std::vector<int32_t> row = long_row(family);
            const at::Tensor with_adapter = logits_of(model, row, adapter.string());
            EXPECT_LE(max_abs(logits_of(folder / "merged", row), with_adapter), 1e-4) << run;
            EXPECT_GT(max_abs(logits_of(model, row), with_adapter), 1e-3) << run;
        }
}

/// Each expert's matrices are quantised by themselves, as bitsandbytes does with modules: in a folder and while
/// loading.
TEST(Families, QuantiseEachExpertByItself) {
    UNSLOTH_NEEDS_XZ();
    const fs::path model = unpacked(family_set("qwen3_moe") / "model");
    const formats::WeightFile base = formats::WeightFile::open(model.string());
    const ScratchFolder folder;
    formats::write_model(formats::MergedModel(base, nullptr), folder.path(), {.type = spec::WeightType::nf4});
    const formats::WeightFile written = formats::WeightFile::open(folder.path().string());
    EXPECT_TRUE(written.tensors.linear({2, spec::Projection::down, 7}).quantised());
    EXPECT_EQ(written.tensors.quantised_linears(), 4 * 4 + 3 + 3 * 3 * 8);
    const std::vector<int32_t> row = long_row("qwen3_moe");
    const LoadedModel loaded = load_scoring_model(model, std::nullopt, "cpu", at::kFloat, /*in_4bit=*/true);
    const at::Tensor in_4bit = score_every_position(*loaded.model, {row}).logits_TV;
    EXPECT_TRUE(same_bits(logits_of(folder.path(), row), in_4bit));
    EXPECT_GT(max_abs(logits_of(model, row), in_4bit), 1e-3);
}

/// The tensors of all experts come out as they were, and become no 4-bit folder. While loading each expert's matrices
/// are quantised by themselves.
TEST(Families, WriteExpertsThatAreTransposedAsTheyWere) {
    UNSLOTH_NEEDS_XZ();
    const fs::path model = unpacked(family_set("gpt_oss") / "model");
    const formats::WeightFile base = formats::WeightFile::open(model.string());
    const ScratchFolder folder;
    formats::write_model(formats::MergedModel(base, nullptr), folder.path(), {});
    const formats::WeightFile written = formats::WeightFile::open(folder.path().string());
    ASSERT_EQ(written.checkpoint.names(), base.checkpoint.names());
    for (const std::string& name : base.checkpoint.names()) {
        EXPECT_EQ(written.checkpoint.at(name).shape, base.checkpoint.at(name).shape) << name;
        EXPECT_TRUE(std::ranges::equal(written.checkpoint.at(name).data, base.checkpoint.at(name).data)) << name;
    }
    for (const spec::WeightType type : {spec::WeightType::nf4, spec::WeightType::int8}) {
        const ScratchFolder other;
        try {
            formats::write_model(formats::MergedModel(base, nullptr), other.path(), {.type = type});
            ADD_FAILURE() << "was written";
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), "model.unsupported") << error.what();
        }
    }
    const std::vector<int32_t> row = long_row("gpt_oss");
    const LoadedModel loaded = load_scoring_model(model, std::nullopt, "cpu", at::kFloat, /*in_4bit=*/true);
    const double off = max_abs(logits_of(model, row), score_every_position(*loaded.model, {row}).logits_TV);
    EXPECT_GT(off, 1e-3);
    EXPECT_LT(off, 5);
}

/// The folder as the hub has it: experts in MXFP4, of which transformers makes the values of the other folder.
TEST(Families, HaveTheSameValuesInMxfp4) {
    UNSLOTH_NEEDS_XZ();
    const fs::path packed = unpacked(family_set("gpt_oss") / "model_mxfp4"),
                   model = unpacked(family_set("gpt_oss") / "model");
    const formats::WeightFile in_4bit = formats::WeightFile::open(packed.string()),
                              in_16_bits = formats::WeightFile::open(model.string());
    EXPECT_EQ(in_4bit.tensors.quantised_linears(), 3 * 6 * 3);
    EXPECT_EQ(in_4bit.tensors.stored_bytes(), in_4bit.checkpoint.total_bytes());
    const std::vector<int32_t> row = long_row("gpt_oss");
    const std::string adapter = unpacked(family_set("gpt_oss") / "lora_experts/initial").string();
    EXPECT_TRUE(same_bits(logits_of(packed, row), logits_of(model, row)));
    EXPECT_TRUE(same_bits(logits_of(packed, row, adapter), logits_of(model, row, adapter)));
    const ScratchFolder folder;  // dequantised, and in the layout of 16-bit folders
    formats::write_model(formats::MergedModel(in_4bit, nullptr), folder.path(), {});
    const formats::WeightFile written = formats::WeightFile::open(folder.path().string());
    ASSERT_EQ(written.checkpoint.names(), in_16_bits.checkpoint.names());
    for (const std::string& name : written.checkpoint.names())
        EXPECT_TRUE(std::ranges::equal(written.checkpoint.at(name).data, in_16_bits.checkpoint.at(name).data)) << name;
}

/// What PEFT wrote comes out again under the same names, in the same shapes, value by value.
TEST(Families, SaveAdaptersOfExpertsAsPeftDoes) {
    UNSLOTH_NEEDS_XZ();
    for (const char* const family : {"qwen3_moe", "qwen3_moe_step2", "gpt_oss"}) {
        const fs::path adapter = unpacked(family_set(family) / "lora_experts/initial");
        const ScratchFolder folder;
        write_rows(folder / "rows.jsonl", {{{5, 6, 7, 8}, {5, 6, 7, 8}, {}}});
        train::Trainer trainer(make_config({"--model.path", unpacked(family_set(family) / "model").string(),
                                            "--model.adapter_name_or_path", adapter.string(), "--model.load_in_4bit",
                                            "false", "--data.train_file", (folder / "rows.jsonl").string(),
                                            "--training.output_dir", (folder / "out").string()}));
        trainer.load();
        const weights::Parameters& parameters = *trainer.model().parameters();
        const formats::Adapter read = formats::read_adapter(adapter, trainer.plan().spec());
        train::save_adapter(folder / "saved", parameters.table(), train::values_in(parameters.values_P), read.config,
                            {});
        const Tensors before = read_tensors(adapter / "adapter_model.safetensors"),
                      after = read_tensors(folder / "saved/adapter_model.safetensors");
        ASSERT_EQ(before.size(), after.size());
        for (const auto& [name, tensor] : before) EXPECT_TRUE(same_bits(after.at(name), tensor)) << name;
        EXPECT_EQ(formats::read_peft_config(folder / "saved").lora.target_parameters,
                  read.config.lora.target_parameters);
    }
}

}  // namespace
}  // namespace unsloth
