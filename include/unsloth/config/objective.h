// What a run learns from its examples, and what follows from that outside of the loss: one row an objective.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace unsloth::config {

/// In the order of `objectives` below. The loss itself is in objective/.
enum class Objective : uint8_t { sft, dpo, orpo, kto, distill, grpo, decision };

/// What an example holds.
enum class ExampleKind : uint8_t {
    targets,    ///< tokens with labels
    pairs,      ///< a prompt, a chosen and a rejected completion
    judged,     ///< a prompt, a completion, and whether it is desirable
    prompts,    ///< a prompt, and columns that reward functions read; the run makes the completions
    decisions,  ///< a question about an input, and the probabilities of its options
};

struct ObjectiveTraits {
    const char* name;  ///< training.objective
    ExampleKind examples;
    bool has_reference = false;      ///< measures against a reference model, unless preference.* leaves it out
    bool has_teacher = false;        ///< compares logits with those of distill.teacher
    bool learns_prompts = false;     ///< the loss of chosen completions includes their prompts
    bool mismatches = false;         ///< each example needs the completion of another one
    bool fixed_micro_batch = false;  ///< the result, or the plan of a teacher, depends on which examples share one
};

inline constexpr std::array<ObjectiveTraits, 7> objectives{{
    {.name = "sft", .examples = ExampleKind::targets},
    {.name = "dpo", .examples = ExampleKind::pairs, .has_reference = true},
    {.name = "orpo", .examples = ExampleKind::pairs, .learns_prompts = true},
    {.name = "kto",
     .examples = ExampleKind::judged,
     .has_reference = true,
     .mismatches = true,
     .fixed_micro_batch = true},
    {.name = "distill", .examples = ExampleKind::targets, .has_teacher = true, .fixed_micro_batch = true},
    {.name = "grpo", .examples = ExampleKind::prompts},
    {.name = "decision", .examples = ExampleKind::decisions},
}};

constexpr const ObjectiveTraits& traits_of(Objective objective) {
    return objectives.at(static_cast<std::size_t>(objective));
}
/// Whether the loss is of whole completions, two sequences an example.
constexpr bool compares_completions(Objective objective) {
    const ExampleKind kind = traits_of(objective).examples;
    return kind == ExampleKind::pairs || kind == ExampleKind::judged;
}
/// Whether a run samples the completions that it learns from.
constexpr bool samples_completions(Objective objective) {
    return traits_of(objective).examples == ExampleKind::prompts;
}
/// Whether it learns the probabilities of a question's options.
constexpr bool learns_decisions(Objective objective) {
    return traits_of(objective).examples == ExampleKind::decisions;
}

}  // namespace unsloth::config
