#include "config/options/sections.h"

namespace unsloth::config {

void declare_preference(OptionSet& options, PreferenceOptions& preference) {
    options.section("preference", "Preferences",
                    "What training.objective dpo, orpo and kto take. Names and formulas are TRL's.",
                    OnResume::immutable);
    options
        .add_choice("loss_type", preference.loss_type,
                    {{"sigmoid", PreferenceLoss::sigmoid},
                     {"hinge", PreferenceLoss::hinge},
                     {"ipo", PreferenceLoss::ipo},
                     {"robust", PreferenceLoss::robust},
                     {"simpo", PreferenceLoss::simpo}},
                    "How dpo makes a loss of a pair's margin; simpo compares means over tokens and needs no reference.")
        .only_with("training.objective", {"dpo"});
    options.add("beta", preference.beta, "Factor on the difference between policy and reference (orpo: on the odds).")
        .above(0)
        .only_with("training.objective", {"dpo", "orpo", "kto"});
    options
        .add_choice("reference", preference.reference, {{"base", Reference::base}, {"initial", Reference::initial}},
                    "Reference of preferences: the base without adapters, or the initial adapter. Its "
                    "log-probabilities are computed once, before the first step.")
        .only_with("training.objective", {"dpo", "kto"})
        .not_with("preference.loss_type", {"simpo"})
        .because("simpo has no reference")
        .not_with("preference.reference_free")
        .on_resume(OnResume::immutable);
    options.add("reference_free", preference.reference_free, "dpo without a reference, as if it preferred nothing.")
        .only_with("training.objective", {"dpo"})
        .not_with("preference.loss_type", {"simpo"})
        .because("simpo has no reference");
    options
        .add("cache_reference", preference.cache_reference,
             "Keep the reference's log-probabilities in data.cache_dir, by rows and base, for the next run.")
        .on_resume(OnResume::mutable_);
    options
        .add(
            "share_prompt", preference.share_prompt,
            "Compute the prompt that two answers share once for both of them; with false each answer has its own copy.")
        .only_with("training.objective", {"dpo", "orpo", "kto"})
        .on_resume(OnResume::logged);
    options
        .add("label_smoothing", preference.label_smoothing,
             "Share of pairs whose answers are taken for mixed up (loss_type sigmoid, robust, simpo).")
        .at_least(0)
        .below(0.5)
        .only_with("training.objective", {"dpo"})
        .only_with("preference.loss_type", {"sigmoid", "robust", "simpo"});
    options.add("simpo_gamma", preference.simpo_gamma, "Margin that loss_type simpo asks for.")
        .at_least(0)
        .only_with("preference.loss_type", {"simpo"});
    options
        .add("rpo_alpha", preference.rpo_alpha,
             "Weight of the chosen completions' own loss, a mean over their tokens, added to dpo's; 0: none.")
        .at_least(0)
        .synonym(nullptr, 0)
        .only_with("training.objective", {"dpo"});
    options.add("desirable_weight", preference.desirable_weight, "kto: weight of answers with a good verdict.")
        .at_least(0)
        .only_with("training.objective", {"kto"});
    options.add("undesirable_weight", preference.undesirable_weight, "kto: weight of answers with a bad verdict.")
        .at_least(0)
        .only_with("training.objective", {"kto"});
    options
        .add("max_prompt_length", preference.max_prompt_length,
             "Cut the prompt to this many tokens where prompt and answer together exceed model.max_seq_length, before "
             "the answer is cut; 0: only the answer is cut.")
        .at_least(0)
        .synonym(nullptr, 0)
        .only_with("training.objective", {"dpo", "orpo", "kto"});
    options
        .add_choice("truncation_mode", preference.truncation_mode,
                    {{"keep_end", TruncationMode::keep_end}, {"keep_start", TruncationMode::keep_start}},
                    "Which tokens of such a prompt stay.")
        .only_with("preference.max_prompt_length");
}

void declare_distill(OptionSet& options, DistillOptions& distill) {
    options.section("distill", "Distillation",
                    "What training.objective distill takes: a student learns what a teacher says of the rows' targets.",
                    OnResume::immutable);
    options
        .add("teacher", distill.teacher,
             "Model folder, or id on the hub, whose token ids mean what the student's mean; or a file that "
             "`unsloth-train score --top_k N` wrote of these rows with such a model.")
        .path("DIR|FILE")
        .suggested_for({"teacher_model", "teacher_model_name_or_path"})
        .only_with("training.objective", {"distill"})
        .on_resume(OnResume::logged);
    options.add("teacher_adapter", distill.teacher_adapter, "PEFT adapter of the teacher.")
        .path("DIR")
        .only_with("training.objective", {"distill"})
        .on_resume(OnResume::logged);
    options
        .add("teacher_load_in_4bit", distill.teacher_load_in_4bit,
             "Hold the teacher in NF4; with false it stays as its checkpoint is.")
        .only_with("training.objective", {"distill"});
    Option& device_map = options.add_object("teacher_device_map", distill.teacher_device_map,
                                            "Device of each part of the teacher, as model.device_map for the student. "
                                            "auto: on the GPU, or as much of it as fits in addition to the student.");
    declare_device_map(device_map);
    device_map.only_with("training.objective", {"distill"});
    options
        .add_choice(
            "divergence", distill.divergence,
            {{"forward_kl", Divergence::forward_kl}, {"reverse_kl", Divergence::reverse_kl}, {"jsd", Divergence::jsd}},
            "How far the student is from the teacher: KL(teacher || student), KL(student || teacher), or "
            "the Jensen-Shannon divergence that jsd_beta says.")
        .only_with("training.objective", {"distill"});
    options
        .add("jsd_beta", distill.jsd_beta,
             "jsd: beta KL(teacher || M) + (1 - beta) KL(student || M), M = beta teacher + (1 - beta) student, as in "
             "TRL's GKD.")
        .above(0)
        .below(1)
        .only_with("distill.divergence", {"jsd"});
    options
        .add("temperature", distill.temperature,
             "Divides the logits of both before they are compared; the divergence is multiplied by its square.")
        .above(0);
    options
        .add("alpha", distill.alpha,
             "Share of the loss that is the divergence; the rest is the cross-entropy of the labels.")
        .at_least(0)
        .at_most(1)
        .only_with("training.objective", {"distill"});
    options
        .add("top_k", distill.top_k,
             "Number of most likely tokens to compare at each position of a teacher's file, with all others as one. 0: "
             "as many as the file has.")
        .at_least(0);
}

}  // namespace unsloth::config
