// The whole model's gradients against central differences of its loss, for what the reference trajectories do not train: biases,
// q and k norms, sliding windows, tied embeddings, every norm; and adapters on each architecture.
#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

class GradientTest : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {};

/// Two rows of 26 tokens, more than mistral_window's 16.
std::vector<Row> rows_of(const std::string& name) {
    const nlohmann::json inputs = read_json(golden("forward/" + name + ".json"))["input_ids"];
    std::vector<Row> rows;
    for (const auto& ids : inputs) {
        Row row;
        row.ids.assign(ids.begin(), ids.begin() + 26);
        row.labels = row.ids;
        row.labels[2] = ignore_label;
        rows.push_back(row);
    }
    return rows;
}

double loss_of(train::Trainer& trainer, const Batch& batch) {
    return in_fp64(trainer.model().score(batch)).sum().item<double>() / static_cast<double>(batch.labels);
}

TEST_P(GradientTest, EqualCentralDifferencesOfTheLoss) {
    const auto& [name, kind, device] = GetParam();
    UNSLOTH_NEEDS_XZ();
    UNSLOTH_NEEDS_DEVICE(device);
    const ScratchFolder folder;
    write_rows(folder / "rows.jsonl", rows_of(name));
    train::Trainer trainer(make_config({"--model.path", model_folder(name).string(), "--data.train_file", (folder / "rows.jsonl").string(),
                                        "--lora.finetuning_type", kind, "--model.load_in_4bit", "false", "--training.num_train_epochs", "4",
                                        "--lora.r", "4", "--training.per_device_train_batch_size", "2", "--hardware.device", device,
                                        "--training.gradient_accumulation_steps", "1", "--training.max_grad_norm", "0"}));
    trainer.load();
    const auto step = [&](int64_t number, double rate) {
        trainer.stepper().issue(trainer.loader().step(0), number, rate);
        return trainer.stepper().take(true)->outcome;
    };
    for (int64_t number = 1; number <= 3; ++number) step(number, 5e-3);  // away from B = 0, where A has no gradient
    const StepOutcome outcome = step(4, 0.0);
    const Batch batch = trainer.loader().step(0).micro[0];
    EXPECT_NEAR(outcome.loss, loss_of(trainer, batch), 1e-5);

    model::Parameters& parameters = *trainer.model().parameters();
    double squares = 0;
    for (const model::Parameter& p : parameters.table().parameters()) {
        const at::Tensor value = parameters.value(p), gradient = parameters.gradient(p), kept = value.clone();
        const double norm = l2(gradient);
        squares += norm * norm;
        ASSERT_GT(norm, 1e-4) << p.name;
        const at::Tensor direction = gradient / norm;
        // A step that moves the loss by about a hundredth: far above fp32's noise, well inside the linear range.
        const double h = std::min(0.01 / norm, 0.02 * std::max(l2(kept), 0.1));
        const auto loss_at = [&](double distance) {
            value.copy_(kept + distance * direction);
            trainer.model().parameters_changed();
            return loss_of(trainer, batch);
        };
        const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
        value.copy_(kept);
        EXPECT_NEAR(slope, norm, 0.02 * norm + 2e-6 / h) << p.name << " with h " << h;
    }
    EXPECT_NEAR(outcome.grad_norm, std::sqrt(squares), 1e-4 * std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(All, GradientTest,
                         ::testing::Combine(::testing::Values("llama_tied", "llama_bias", "mistral_window", "qwen2", "qwen3"),
                                            ::testing::Values("full", "lora"), ::testing::ValuesIn(built_devices())),
                         [](const auto& info) {
                             return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" + std::get<2>(info.param);
                         });

}  // namespace
}  // namespace unsloth
