#include "tokenizer/splitting_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/pipeline_json.h"

namespace unsloth::tokenizer {
namespace {

/// Stands for a step that has no pattern of its own.
constexpr std::string_view digits_step = "Digits one by one";

constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Splitting {
    std::string_view name;
    std::vector<std::string_view> steps;
    /// Whether a word that is in the vocabulary is that token whatever the merges give; llama.cpp ties it to the name.
    bool ignore_merges;
};

const std::vector<Splitting>& known_splittings() {
    static const std::vector<Splitting> all = {
        {"llama-bpe", {llama3_pattern}, true}, {"smaug-bpe", {llama3_pattern}, false},
        {"qwen2", {qwen2_pattern}, false},     {"tekken", {tekken_pattern}, true},
        {"gpt-2", {gpt2_pattern}, false},      {"smollm", {digits_step, gpt2_pattern}, false},
    };
    return all;
}

/// Nullopt for a step that no name covers.
std::optional<std::string> text_of(const PreTokenizerStep& step) {
    const auto* characters = std::get_if<CharacterSplit>(&step);
    if (characters && characters->matches == unicode::is_numeric && characters->behavior == SplitBehavior::isolated)
        return std::string(digits_step);
    const auto* split = std::get_if<PatternSplit>(&step);
    const bool plain = split && split->pattern.regex && split->behavior == SplitBehavior::isolated && !split->invert;
    return plain ? std::optional(split->pattern.regex->source()) : std::nullopt;
}

}  // namespace

std::string splitting_name(const TokenizerSpec& spec, const std::filesystem::path& path) {
    for (const NormalizerStep& step : spec.normalizer) {
        // Composed characters are what people type, so this alone is let through.
        if (!std::holds_alternative<NfcStep>(step))
            throw input_error(cat(path.string(),
                                  ": key normalizer: llama.cpp does not normalise texts, this tokenizer does: the two "
                                  "would give other tokens"));
    }
    std::vector<std::string> steps;
    for (const PreTokenizerStep& step : spec.pre_tokenizer) steps.push_back(text_of(step).value_or(""));
    std::string names;
    for (const Splitting& splitting : known_splittings()) {
        names += cat(names.empty() ? "" : ", ", splitting.name);
        if (std::equal(steps.begin(), steps.end(), splitting.steps.begin(), splitting.steps.end()) &&
            splitting.ignore_merges == spec.model.ignore_merges)
            return std::string(splitting.name);
    }
    throw input_error(
        cat(path.string(),
            ": key pre_tokenizer: llama.cpp's name for this way of splitting texts is not known here (known: ", names,
            ")"),
        "If llama.cpp has one (tokenizer.ggml.pre of a GGUF file of the same model), give it with --pre NAME.");
}

}  // namespace unsloth::tokenizer
