#include "tokenizer/splitting_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace unsloth::tokenizer {
namespace {

/// Stand for steps that have no pattern of their own.
constexpr std::string_view gpt2_step = "ByteLevel with use_regex", digits_step = "Digits one by one";

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
        {"gpt-2", {gpt2_step}, false},         {"smollm", {digits_step, gpt2_step}, false},
    };
    return all;
}

/// Nullopt for a step that no name covers.
std::optional<std::string> step_text(const JsonReader& step) {
    const std::string& type = step.at("type").string();
    if (type == "Digits" && step.boolean_or("individual_digits", false)) return std::string(digits_step);
    if (type != "Split" || !step.at("pattern").has("Regex")) return std::nullopt;
    const bool plain = step.at("behavior").string() == "Isolated" && !step.boolean_or("invert", false);
    return plain ? std::optional(step.at("pattern").at("Regex").string()) : std::nullopt;
}

/// The steps in front of ByteLevel, and ByteLevel's own splitting.
std::optional<std::vector<std::string>> steps_of(const JsonReader& pre_tokenizer) {
    std::vector<std::string> steps;
    const bool sequence = pre_tokenizer.at("type").string() == "Sequence";
    const std::size_t count = sequence ? pre_tokenizer.at("pretokenizers").size() : 1;
    for (std::size_t i = 0; i < count; ++i) {
        const JsonReader step = sequence ? pre_tokenizer.at("pretokenizers").at(i) : pre_tokenizer;
        if (step.at("type").string() != "ByteLevel") {
            const auto text = step_text(step);
            if (!text) return std::nullopt;
            steps.push_back(*text);
            continue;
        }
        if (i + 1 != count || step.boolean_or("add_prefix_space", true)) return std::nullopt;
        if (step.boolean_or("use_regex", true)) steps.emplace_back(gpt2_step);
    }
    return steps;
}

/// llama.cpp normalises nothing. Composed characters (NFC) are what people type, so this alone is let through.
void check_normalizer(const JsonReader& root) {
    if (!root.has("normalizer")) return;
    const JsonReader normalizer = root.at("normalizer");
    if (normalizer.at("type").string() != "NFC")
        throw input_error(cat(normalizer.where(), ": llama.cpp does not normalise texts, this tokenizer does (",
                              normalizer.at("type").string(), "): the two would give other tokens"));
}

}  // namespace

std::string splitting_name(const JsonReader& root) {
    check_normalizer(root);
    const std::string where = cat(root.where(), ": key pre_tokenizer");
    const auto steps = root.has("pre_tokenizer") ? steps_of(root.at("pre_tokenizer")) : std::nullopt;
    const bool ignore_merges = root.at("model").boolean_or("ignore_merges", false);
    std::string names;
    for (const Splitting& splitting : known_splittings()) {
        names += cat(names.empty() ? "" : ", ", splitting.name);
        if (steps && std::equal(steps->begin(), steps->end(), splitting.steps.begin(), splitting.steps.end()) &&
            splitting.ignore_merges == ignore_merges)
            return std::string(splitting.name);
    }
    throw input_error(
        cat(where, ": llama.cpp's name for this way of splitting texts is not known here (known: ", names, ")"),
        "If llama.cpp has one (tokenizer.ggml.pre of a GGUF file of the same model), give it with --pre NAME.");
}

}  // namespace unsloth::tokenizer
