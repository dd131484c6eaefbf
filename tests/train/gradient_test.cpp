// The whole model's gradients against central differences of its loss, for what the reference trajectories do not
// train: biases, q and k norms, sliding windows, tied embeddings, every norm; and adapters on each architecture, with
// and without dropout, and DoRA's magnitudes.
#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

class GradientTest : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {};

bool is_family(const std::string& name) {
    return fs::exists(golden("families/" + name));
}

fs::path model_of(const std::string& name) {
    return is_family(name) ? unpacked(golden("families/" + name + "/model")) : model_folder(name);
}

/// Two rows of 26 tokens, more than mistral_window's 16.
std::vector<Row> rows_of(const std::string& name) {
    nlohmann::json inputs;
    if (is_family(name)) {
        const nlohmann::json all = read_json(unpacked(golden("families/" + name)) / "forward.json")["rows"];
        for (const std::size_t row : {1, 2}) inputs.push_back(all[row]["input_ids"]);
    } else {
        inputs = read_json(golden("forward/" + name + ".json"))["input_ids"];
    }
    std::vector<Row> rows;
    for (const auto& ids : inputs) {
        Row row;
        row.ids.assign(ids.begin(), ids.begin() + 26);
        row.labels = row.ids;
        row.labels[2] = data::ignore_label;
        rows.push_back(row);
    }
    return rows;
}

/// Experts have no adapters.
std::string targets_of(const std::string& name, bool full) {
    const std::string attention = "q_proj,k_proj,v_proj,o_proj";
    if (name.starts_with("qwen3_moe")) return attention;
    const std::string nets = "in_proj_qkv,in_proj_z,out_proj";
    return attention + ",gate_proj,up_proj,down_proj" + (name.starts_with("qwen3_5") && !full ? "," + nets : "");
}

/// The loss of a training step that changes nothing: with the same masks whenever it is taken.
spec::StepOutcome still_step(train::Trainer& trainer, int64_t number) {
    trainer.stepper().issue(trainer.loader().step(0), number, 0.0);
    return trainer.stepper().take(true)->outcome;
}

double scored_loss(train::Trainer& trainer, const data::Batch& batch) {
    return in_fp64(trainer.model().score(batch)).sum().item<double>() / static_cast<double>(batch.labels);
}

TEST_P(GradientTest, EqualCentralDifferencesOfTheLoss) {
    const auto& [name, kind, device] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const bool full = kind == "full", dropout = kind == "dropout", dora = kind == "dora";
    const ScratchFolder folder;
    write_rows(folder / "rows.jsonl", rows_of(name));
    train::Trainer trainer(make_config({"--model.path",
                                        model_of(name).string(),
                                        "--data.train_file",
                                        (folder / "rows.jsonl").string(),
                                        "--lora.finetuning_type",
                                        full ? "full" : "lora",
                                        "--lora.target_modules",
                                        targets_of(name, full),
                                        "--lora.lora_dropout",
                                        dropout ? "0.25" : "0",
                                        "--lora.use_dora",
                                        dora ? "true" : "false",
                                        "--model.load_in_4bit",
                                        "false",
                                        "--training.num_train_epochs",
                                        "4",
                                        "--lora.r",
                                        "4",
                                        "--training.per_device_train_batch_size",
                                        "2",
                                        "--hardware.device",
                                        device,
                                        "--training.gradient_accumulation_steps",
                                        "1",
                                        "--training.max_grad_norm",
                                        "0"}));
    trainer.load();
    for (int64_t number = 1; number <= 3; ++number) {  // away from B = 0, where A has no gradient
        trainer.stepper().issue(trainer.loader().step(0), number, 5e-3);
        trainer.stepper().take(true);
    }
    const spec::StepOutcome outcome = still_step(trainer, 4);
    const data::Batch batch = trainer.loader().step(0).micro[0];
    const double scored = scored_loss(trainer, batch);
    EXPECT_LT(std::abs(outcome.loss - scored), dropout ? 1.0 : 1e-5);
    if (dropout) {
        EXPECT_GT(std::abs(outcome.loss - scored), 1e-4) << "nothing was dropped";
    }

    weights::Parameters& parameters = *trainer.model().parameters();
    const at::Tensor all_gradients =
        parameters.state().grads_P.clone();  // a step that measures the loss overwrites them
    double squares = 0;
    for (const weights::Parameter& p : parameters.table().parameters()) {
        const at::Tensor value = parameters.value(p), kept = value.clone();
        const at::Tensor gradient = all_gradients.narrow(0, p.offset, p.elements()).view(p.shape);
        const double norm = l2(gradient);
        squares += norm * norm;
        ASSERT_GT(norm, 1e-4) << p.name;
        // DoRA's norms count as constants: the gradients of A and B are no slopes.
        if (dora && p.kind != weights::Parameter::Kind::magnitude) continue;
        const at::Tensor direction = gradient / norm;
        // A step that moves the loss by about a hundredth: far above fp32's noise, well inside the linear range.
        // In the families' models norms follow what is moved: there the range is half as wide.
        const double h = std::min(0.01 / norm, 0.02 * std::max(l2(kept), 0.1)) / (is_family(name) ? 2 : 1);
        const auto loss_at = [&](double distance) {
            value.copy_(kept + distance * direction);
            trainer.model().parameters_changed();
            return dropout ? still_step(trainer, 5).loss : scored_loss(trainer, batch);
        };
        const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
        value.copy_(kept);
        EXPECT_NEAR(slope, norm, 0.02 * norm + 2e-6 / h) << p.name << " with h " << h;
    }
    EXPECT_NEAR(outcome.grad_norm, std::sqrt(squares), 1e-4 * std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(
    All, GradientTest,
    ::testing::Combine(::testing::Values("llama_tied", "llama_bias", "mistral_window", "qwen2", "qwen3"),
                       ::testing::Values("full", "lora", "dropout", "dora"), ::testing::ValuesIn(test_devices())),
    [](const auto& info) {
        return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" + std::get<2>(info.param);
    });

INSTANTIATE_TEST_SUITE_P(Families, GradientTest,
                         ::testing::Combine(::testing::Values("granite", "ministral3", "phi3", "phi3_longrope",
                                                              "gemma3_text", "olmo3", "qwen3_5_text"),
                                            ::testing::Values("full", "dora"), ::testing::ValuesIn(test_devices())),
                         [](const auto& info) {
                             return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
                                    std::get<2>(info.param);
                         });

/// Neither qwen3_moe nor gpt_oss: a step of this size gives some tokens other experts.
INSTANTIATE_TEST_SUITE_P(Experts, GradientTest,
                         ::testing::Combine(::testing::Values("qwen3_moe_step2"), ::testing::Values("lora"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<2>(info.param); });

}  // namespace
}  // namespace unsloth
