// What a run leaves behind, read back: adapters continue where they stopped, a fully trained model scores the same.
#include "unsloth/train/save.h"
#include "train/support.h"
#include "unsloth/formats/peft.h"

namespace unsloth {
namespace {

using namespace test;

class SaveTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    /// A reference variant, a few steps of it.
    Flags flags(const std::string& variant, const char* steps) const {
        return reference_flags(variant, folder) + Flags{"--training.max_steps",     steps,
                                                        "--hardware.device",        GetParam(),
                                                        "--training.deterministic", "true"};
    }
    ScratchFolder folder;
};

/// Losses of the first rows under a trainer's model as it is.
at::Tensor score_first_step(train::Trainer& trainer) {
    const data::StepBatch step = trainer.loader().step(0);
    std::vector<at::Tensor> losses;
    for (const data::Batch& micro : step.micro) losses.push_back(trainer.model().score(micro));
    return at::cat(losses);
}

void take_steps(train::Trainer& trainer) {
    for (int64_t step = 1; step <= trainer.total_steps(); ++step) {
        trainer.stepper().issue(trainer.loader().step(step - 1), step, trainer.learning_rate(step));
        while (trainer.stepper().take(true)) continue;
    }
}

TEST_P(SaveTest, AnAdapterFolderReadsBackAndContinues) {
    for (const char* variant : {"rslora", "patterns", "modules_to_save"}) {
        SCOPED_TRACE(variant);
        const config::LoadedConfig config = make_config(flags(variant, "6"));
        train::Trainer trainer(config);
        trainer.load();
        take_steps(trainer);
        train::save_adapter(folder / "saved", trainer.model().parameters()->table(),
                            train::values_in(trainer.model().parameters()->state().params_P),
                            {*trainer.plan().lora(), config.config.model.path, ""});

        const Tensors values = copy_values(*trainer.model().parameters());
        expect_same_bits(read_tensors(folder / "saved/adapter_model.safetensors"), values);
        const formats::Adapter adapter = formats::read_adapter(folder / "saved", trainer.plan().spec());
        EXPECT_EQ(adapter.config.base_model_name_or_path, config.config.model.path);
        const formats::Adapter initial =
            formats::read_adapter(*config.config.model.adapter_name_or_path, trainer.plan().spec());
        for (std::size_t layer = 0; layer < initial.layers.size(); ++layer)
            for (const spec::Projection p : trainer.plan().spec().linears) {
                EXPECT_EQ(adapter.layers[layer][p].r, initial.layers[layer][p].r);
                EXPECT_EQ(adapter.layers[layer][p].scale, initial.layers[layer][p].scale);
            }

        // A run that starts from the folder holds the same model: same losses, same values, same gradients.
        train::Trainer again(
            make_config(flags(variant, "6") + Flags{"--model.adapter_name_or_path", (folder / "saved").string(),
                                                    "--training.output_dir", (folder / "again").string()}));
        again.load();
        expect_same_bits(copy_values(*again.model().parameters()), values);
        EXPECT_TRUE(same_bits(score_first_step(again), score_first_step(trainer)));
        const auto gradients = [](train::Trainer& t) {
            t.stepper().issue(t.loader().step(0), 1, 0.0);
            EXPECT_EQ(t.stepper().take(true)->outcome.skipped, 0U);
            return copy_gradients(*t.model().parameters());
        };
        expect_same_bits(gradients(again), gradients(trainer));
    }
}

TEST_P(SaveTest, AFullRunLeavesAModelThatScoresTheSame) {
    const config::LoadedConfig config = make_config(flags("full", "5"));
    train::Trainer(config).run();
    const formats::WeightFile result = formats::WeightFile::open((folder / "out").string());
    EXPECT_EQ(result.spec.dtype, spec::DType::f32) << "a run in float32 loses nothing by being saved";

    // The same run in memory.
    train::Trainer trainer(config);
    trainer.load();
    take_steps(trainer);
    for (const auto& [name, value] : copy_values(*trainer.model().parameters()))
        EXPECT_LT(max_abs(tensor_of(result.tensors.find(name)->tensor()), value), 1e-6) << name;
    const at::Tensor expected = score_first_step(trainer);

    const data::StepBatch step = trainer.loader().step(0);
    const data::BatchLimits limits = trainer.loader().limits();
    const LoadedModel saved = load_model(folder / "out", GetParam(), at::kFloat, false, limits.tokens, limits.segments);
    std::vector<at::Tensor> losses;
    for (const data::Batch& micro : step.micro) losses.push_back(saved->score(micro));
    EXPECT_LT(max_abs(at::cat(losses), expected), 1e-5);
    const LoadedModel before =
        load_model(config.config.model.path, GetParam(), at::kFloat, false, limits.tokens, limits.segments);
    EXPECT_GT(max_abs(before->score(step.micro[0]), losses[0]), 1e-2) << "five steps must be seen in the losses";
}

TEST_P(SaveTest, AFullRunInSixteenBitIsSavedInTheCheckpointsType) {
    train::Trainer(make_config(flags("full", "1") + Flags{"--model.dtype", "bfloat16"})).run();
    EXPECT_EQ(formats::WeightFile::open((folder / "out").string()).spec.dtype, spec::DType::bf16);
}

TEST_P(SaveTest, ShardsHoldWhatOneFileHolds) {
    train::Trainer trainer(make_config(flags("full", "1")));
    trainer.load();
    const fs::path source = model_folder("small_llama/bf16");
    train::save_model(folder / "one", trainer.model().parameters()->table(),
                      train::values_in(trainer.model().parameters()->state().params_P), trainer.plan().spec(), source);
    train::save_model(folder / "many", trainer.model().parameters()->table(),
                      train::values_in(trainer.model().parameters()->state().params_P), trainer.plan().spec(), source,
                      100'000);
    EXPECT_TRUE(fs::exists(folder / "one/model.safetensors"));
    EXPECT_FALSE(fs::exists(folder / "many/model.safetensors"));
    EXPECT_TRUE(fs::exists(folder / "many/model.safetensors.index.json"));
    // Untrained, so also what was loaded.
    const formats::WeightFile one = formats::WeightFile::open((folder / "one").string()),
                              many = formats::WeightFile::open((folder / "many").string());
    const formats::WeightFile original = formats::WeightFile::open(source.string());
    ASSERT_EQ(one.tensors.all().size(), original.tensors.all().size());
    ASSERT_EQ(many.tensors.all().size(), original.tensors.all().size());
    for (const formats::TensorSource& tensor : original.tensors.all()) {
        const std::string& name = tensor.rule.hf_name;
        const at::Tensor expected = tensor_of(tensor.tensor());
        EXPECT_TRUE(same_bits(tensor_of(one.tensors.find(name)->tensor()), expected)) << name;
        EXPECT_TRUE(same_bits(tensor_of(many.tensors.find(name)->tensor()), expected)) << name;
    }
}

TEST_P(SaveTest, ATiedModelTrainsAndSavesOneMatrix) {
    std::vector<Row> rows;
    for (int32_t r = 0; r < 4; ++r) {
        Row row;
        for (int32_t t = 0; t < 12; ++t) row.ids.push_back((7 * r + 5 * t) % 120);
        row.labels = row.ids;
        rows.push_back(row);
    }
    write_rows(folder / "rows.jsonl", rows);
    const config::LoadedConfig config = make_config({"--model.path",
                                                     model_folder("llama_tied").string(),
                                                     "--data.train_file",
                                                     (folder / "rows.jsonl").string(),
                                                     "--training.output_dir",
                                                     (folder / "out").string(),
                                                     "--training.overwrite_output_dir",
                                                     "true",
                                                     "--lora.finetuning_type",
                                                     "full",
                                                     "--training.warmup_steps",
                                                     "0",
                                                     "--training.learning_rate",
                                                     "0.001",
                                                     "--hardware.device",
                                                     GetParam(),
                                                     "--training.num_train_epochs",
                                                     "6",
                                                     "--training.deterministic",
                                                     "true"});
    const Course course = train_all(config);
    EXPECT_LT(course.steps.back().outcome.loss, 0.9 * course.steps.front().outcome.loss);
    train::Trainer(config).run();
    const formats::WeightFile saved = formats::WeightFile::open((folder / "out").string());
    EXPECT_TRUE(saved.spec.tie_word_embeddings);
    EXPECT_EQ(saved.tensors.find("lm_head.weight"), nullptr);
    const at::Tensor embed = tensor_of(saved.tensors.find("model.embed_tokens.weight")->tensor());
    EXPECT_LT(max_abs(embed, course.final_values.at("model.embed_tokens.weight")), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(All, SaveTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
