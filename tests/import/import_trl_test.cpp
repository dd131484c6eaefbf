#include "common/files.h"

#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

TEST(Import, Trl) {
    const import::ImportedConfig imported = import_text(R"(
model_name_or_path: models/llama
dataset_name: rows.jsonl
use_peft: true
lora_r: 32
lora_alpha: 16
learning_rate: 2.0e-4
max_length: 2048
packing: true
gradient_checkpointing: true
warmup_steps: 0.03
eval_strategy: steps
save_strategy: epoch
report_to: none
neftune_noise_alpha: 5
)");
    EXPECT_EQ(imported.program, "TRL 1.16.0 and Unsloth 2026.10.9");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.lora.r, 32);
    EXPECT_EQ(config.lora.lora_dropout, 0.05);
    EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    EXPECT_EQ(config.model.dtype, spec::DType::bf16);
    EXPECT_EQ(config.training.warmup_ratio, 0.03);
    EXPECT_EQ(config.training.optim, config::Optimizer::adamw_torch);
    EXPECT_TRUE(config.data.packing);
    EXPECT_EQ(config.training.neftune_noise_alpha, 5);
    EXPECT_EQ(config.training.saves_per_epoch, 1);
    ASSERT_EQ(imported.aside.size(), 1u) << all(imported.losses);
    EXPECT_CONTAINS(all(imported.aside), "eval_strategy: steps: the rows to evaluate on have to be named");
    EXPECT_EQ(loaded(import_text("model_name_or_path: m")).config.lora.finetuning_type, config::FinetuningType::full);
}

TEST(Import, TrlPreferences) {
    const std::string common = "model_name_or_path: m\ndataset_name: rows.jsonl\nuse_peft: true\n";
    const auto of = [&](const std::string& fields) { return import_text(common + fields); };
    const auto preference = [&](const std::string& fields) {
        const import::ImportedConfig imported = of(fields);
        EXPECT_EQ(all(imported.losses), "") << fields;
        return loaded(imported).config.preference;
    };
    const import::ImportedConfig dpo =
        of("loss_type: [robust]\nbeta: 0.3\nlabel_smoothing: 0.1\nf_divergence_type: reverse_kl\n"
           "precompute_ref_log_probs: true\nlora_dropout: 0.05\n");
    EXPECT_EQ(all(dpo.losses), "");
    EXPECT_CONTAINS(all(dpo.notes), "precompute_ref_log_probs");
    EXPECT_CONTAINS(all(dpo.notes), "lora_dropout: has no effect: disable_dropout is on");
    const config::Config config = loaded(dpo).config;
    EXPECT_EQ(config.training.objective, config::Objective::dpo);
    EXPECT_EQ(config.training.learning_rate, 1e-6);  // DPOConfig's default
    EXPECT_EQ(config.lora.lora_dropout, 0);
    EXPECT_EQ(config.preference.loss_type, config::PreferenceLoss::robust);
    EXPECT_EQ(config.preference.beta, 0.3);
    EXPECT_EQ(config.preference.label_smoothing, 0.1);
    EXPECT_EQ(preference("loss_type: hinge").loss_type, config::PreferenceLoss::hinge);
    EXPECT_EQ(preference("loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.2]").rpo_alpha, 0.2);
    EXPECT_EQ(preference("loss_type: sigmoid\nrpo_alpha: 0.5").rpo_alpha, 0.5);  // of older releases
    EXPECT_TRUE(preference("loss_type: ipo\nreference_free: true").reference_free);
    // TRL 1.16's sigmoid does not read it.
    const import::ImportedConfig smoothed = of("loss_type: sigmoid\nlabel_smoothing: 0.1");
    EXPECT_EQ(loaded(smoothed).config.preference.label_smoothing, 0);
    EXPECT_CONTAINS(all(smoothed.notes), "label_smoothing: has no effect");

    const import::ImportedConfig kto = of("beta: 0.2\ndesirable_weight: 1.5\nundesirable_weight: 0.5\nloss_type: kto");
    EXPECT_EQ(all(kto.losses), "");
    EXPECT_EQ(loaded(kto).config.training.objective, config::Objective::kto);
    EXPECT_EQ(loaded(kto).config.preference.desirable_weight, 1.5);
    EXPECT_EQ(loaded(kto).config.preference.undesirable_weight, 0.5);

    const config::PreferenceOptions simpo = preference("loss_type: simpo\nsimpo_gamma: 1.2\nlabel_smoothing: 0.1");
    EXPECT_EQ(simpo.loss_type, config::PreferenceLoss::simpo);
    EXPECT_EQ(simpo.simpo_gamma, 1.2);
    EXPECT_EQ(simpo.label_smoothing, 0.1);
    EXPECT_EQ(simpo.rpo_alpha, 1);  // cpo_alpha's default
    const config::PreferenceOptions cpo = preference("cpo_alpha: 0.5");
    EXPECT_TRUE(cpo.reference_free);
    EXPECT_EQ(cpo.rpo_alpha, 0.5);

    const config::Config orpo = loaded(of("objective: orpo\nbeta: 0.25\ndisable_dropout: false")).config;
    EXPECT_EQ(orpo.training.objective, config::Objective::orpo);
    EXPECT_EQ(orpo.preference.beta, 0.25);
    EXPECT_EQ(orpo.lora.lora_dropout, 0.05);  // ModelConfig's default
}

TEST(Import, WhatOfTrlsPreferencesIsNotThereIsSaid) {
    const auto losses = [](const std::string& fields) {
        return all(import_text("model_name_or_path: m\ndataset_name: rows.jsonl\n" + fields).losses);
    };
    EXPECT_CONTAINS(losses("beta: 0.3"), "say \"objective\" in the file");
    EXPECT_CONTAINS(losses("loss_type: exo_pair"), "loss_type: exo_pair");
    EXPECT_CONTAINS(losses("loss_type: [sigmoid, bco_pair, sft]"), "of sigmoid, hinge, ipo and robust one");
    EXPECT_CONTAINS(losses("loss_type: [sigmoid, sft]\nloss_weights: [0.8, 1]"),
                    "the loss of the pairs has the weight 1");
    EXPECT_CONTAINS(losses("loss_type: [sigmoid]\nloss_weights: [1, 2]"), "a number for each loss_type");
    EXPECT_CONTAINS(losses("loss_type: apo_zero_unpaired"), "training.objective kto has one loss");
    EXPECT_CONTAINS(losses("loss_type: sigmoid\nsync_ref_model: true"), "the reference stays what it was");
    EXPECT_CONTAINS(losses("loss_type: sigmoid\nld_alpha: 0.5"), "count alike");
    EXPECT_CONTAINS(losses("loss_type: sigmoid\nf_divergence_type: js_divergence"), "reverse KL");
}

}  // namespace
}  // namespace unsloth::testing
