#include "formats/gguf/metadata.h"

#include <algorithm>
#include <cmath>

#include "formats/families/family.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::formats::gguf {
namespace {

uint32_t u32(int64_t value) {
    UNSLOTH_CHECK(value >= 0 && value <= static_cast<int64_t>(UINT32_MAX), value);
    return static_cast<uint32_t>(value);
}

void add_rope_fields(const spec::ModelSpec& spec, const std::string& prefix, GgufMetadata& out) {
    using Type = spec::RopeSpec::Type;
    const spec::RopeSpec& rope = spec.ropes.front();
    out.add(prefix + "rope.freq_base", static_cast<float>(rope.theta));
    out.add(prefix + "rope.dimension_count", u32(spec.head_dim));
    if (rope.type != Type::linear && rope.type != Type::yarn) return;
    const std::string scaling = prefix + "rope.scaling.";
    out.add(scaling + "type", rope.type == Type::linear ? "linear" : "yarn");
    out.add(scaling + "factor", static_cast<float>(rope.factor));
    if (rope.type == Type::linear) return;
    const int64_t original = rope.original_max_position_embeddings;
    out.add(scaling + "original_context_length", u32(original > 0 ? original : spec.max_position_embeddings));
    out.add(scaling + "yarn_beta_fast", static_cast<float>(rope.beta_fast));
    out.add(scaling + "yarn_beta_slow", static_cast<float>(rope.beta_slow));
    // llama.cpp multiplies by 0.1 ln(factor) + 1 whatever the model says; this is the rest.
    const double theirs = rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1.0;
    const double rest = static_cast<double>(spec::rope_frequencies(spec, 1).attention_scaling) / theirs;
    if (std::abs(rest - 1) > 1e-6) out.add(scaling + "attn_factor", static_cast<float>(rest));
}

void add_role(const char* role, std::optional<int32_t> id, std::optional<int64_t> otherwise, int64_t tokens,
              GgufMetadata& out) {
    const std::optional<int64_t> value = id ? std::optional<int64_t>(*id) : otherwise;
    if (!value) return;
    if (*value < 0 || *value >= tokens) {
        log::warning("the id ", *value, " of the ", role, " token is outside of the vocabulary: left out");
        return;
    }
    out.add(cat("tokenizer.ggml.", role, "_token_id"), u32(*value));
}

void add_chat_templates(const spec::Vocabulary& vocabulary, GgufMetadata& out) {
    std::vector<std::string> others;
    for (const auto& [name, text] : vocabulary.chat_templates) {
        if (name == "default") {
            out.add("tokenizer.chat_template", text);
        } else {
            out.add(cat("tokenizer.chat_template.", name), text);
            others.push_back(name);
        }
    }
    if (!others.empty()) out.add("tokenizer.chat_templates", others);
}

}  // namespace

std::string architecture_name(const spec::ModelSpec& spec) {
    return std::string(family_of(spec).gguf.name);
}

bool permutes_heads(const spec::ModelSpec& spec) {
    return family_of(spec).gguf.permutes_heads;
}

void check_expressible(const spec::ModelSpec& spec) {
    const GgufArchitecture& architecture = family_of(spec).gguf;
    const auto refuse = [&](const std::string& what) {
        throw Error("export.unsupported",
                    cat("llama.cpp's '", architecture.name, "' has no ", what, ", which this model has"));
    };
    if (!architecture.all_biases && (spec.o_bias || spec.mlp_bias))
        refuse("biases on the output projection or the MLP");
    if (!architecture.rope_divisors && spec.has_rope(spec::RopeSpec::Type::llama3))
        refuse("RoPE scaling of type llama3");
    if (!architecture.any_head_size && spec.q_size() != spec.hidden_size)
        refuse("heads that are not hidden_size wide together");
    const spec::RopeSpec& rope = spec.ropes.front();
    if (rope.type == spec::RopeSpec::Type::longrope) refuse("RoPE scaling of type longrope that this program writes");
    if (rope.type == spec::RopeSpec::Type::dynamic)
        log::warning("llama.cpp has no dynamic RoPE: positions from ", spec.max_position_embeddings, " on will differ");
    if (rope.type == spec::RopeSpec::Type::yarn && (rope.beta_fast != 32 || rope.beta_slow != 1 || !rope.truncate))
        log::warning("llama.cpp reads neither beta_fast and beta_slow nor truncate of YaRN for '", architecture.name,
                     "': give them to it by --yarn-beta-fast ", rope.beta_fast, " --yarn-beta-slow ", rope.beta_slow);
    if (std::ranges::any_of(spec.layers, [](const spec::LayerSpec& layer) { return layer.rope != 0; }))
        refuse("layers whose positions are encoded in another way");
    const auto layer = std::ranges::find_if(spec.layers, [](const spec::LayerSpec& layer) { return layer.window > 0; });
    if (layer != spec.layers.end())
        log::warning("llama.cpp has no sliding window for '", architecture.name, "': texts beyond ", layer->window,
                     " tokens will see more of what came before");
}

void add_model_fields(const spec::ModelSpec& spec, const GgufExportOptions& options, GgufMetadata& out) {
    const std::string architecture = architecture_name(spec), prefix = architecture + ".";
    out.add("general.architecture", architecture);
    out.add("general.type", "model");
    out.add("general.name", options.name);
    out.add("general.file_type", static_cast<uint32_t>(options.type));
    out.add("general.quantization_version", quantization_version);
    out.add(prefix + "block_count", u32(spec.num_layers));
    out.add(prefix + "context_length", u32(spec.max_position_embeddings));
    out.add(prefix + "embedding_length", u32(spec.hidden_size));
    out.add(prefix + "feed_forward_length", u32(spec.intermediate_size));
    out.add(prefix + "attention.head_count", u32(spec.num_heads));
    out.add(prefix + "attention.head_count_kv", u32(spec.num_kv_heads));
    out.add(prefix + "attention.key_length", u32(spec.head_dim));
    out.add(prefix + "attention.value_length", u32(spec.head_dim));
    out.add(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(spec.rms_norm_eps));
    out.add(prefix + "vocab_size", u32(spec.vocab_size));
    add_rope_fields(spec, prefix, out);
}

void add_vocabulary_fields(const spec::ModelSpec& spec, const spec::Vocabulary& vocabulary, GgufMetadata& out) {
    const auto count = static_cast<int64_t>(vocabulary.tokens.size());
    if (count > spec.vocab_size)
        throw Error("tokenizer.vocabulary-size",
                    cat("the tokenizer has ", count, " tokens, the model ", spec.vocab_size),
                    "The tokenizer belongs to another model, or the embeddings were not enlarged for added tokens.");
    const bool sentencepiece = vocabulary.kind == spec::Vocabulary::Kind::sentencepiece;
    std::vector<std::string> texts;
    std::vector<int32_t> kinds;
    std::vector<float> scores;
    for (int64_t id = 0; id < spec.vocab_size; ++id) {
        const spec::VocabularyToken token =
            id < count ? vocabulary.tokens[static_cast<std::size_t>(id)] : spec::VocabularyToken{};
        const bool filler = token.text.empty();
        texts.push_back(filler ? cat("[PAD", id, "]") : token.text);
        kinds.push_back(static_cast<int32_t>(filler ? spec::TokenKind::unused : token.kind));
        scores.push_back(filler ? -10000.0F : token.score);
    }
    out.add("tokenizer.ggml.model", sentencepiece ? "llama" : "gpt2");
    out.add("tokenizer.ggml.pre", sentencepiece ? "default" : vocabulary.pre_tokenizer);
    out.add("tokenizer.ggml.tokens", texts);
    if (sentencepiece) out.add("tokenizer.ggml.scores", scores);
    out.add("tokenizer.ggml.token_type", kinds);
    if (sentencepiece) {
        out.add("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix);
    } else {
        out.add("tokenizer.ggml.merges", vocabulary.merges);
    }
    const std::optional<int64_t> eos =
        spec.eos_token_ids.empty() ? std::nullopt : std::optional(spec.eos_token_ids.front());
    add_role("bos", vocabulary.bos, spec.bos_token_id, spec.vocab_size, out);
    add_role("eos", vocabulary.eos, eos, spec.vocab_size, out);
    add_role("unknown", vocabulary.unknown, {}, spec.vocab_size, out);
    add_role("seperator", vocabulary.separator, {}, spec.vocab_size, out);  // the key's spelling
    add_role("padding", vocabulary.padding, spec.pad_token_id, spec.vocab_size, out);
    add_role("cls", vocabulary.classification, {}, spec.vocab_size, out);
    add_role("mask", vocabulary.mask, {}, spec.vocab_size, out);
    out.add("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
    out.add("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
    add_chat_templates(vocabulary, out);
}

std::vector<float> rope_divisors(const spec::ModelSpec& spec) {
    if (spec.ropes.front().type != spec::RopeSpec::Type::llama3) return {};
    spec::ModelSpec unscaled = spec;
    unscaled.ropes.front().type = spec::RopeSpec::Type::standard;
    std::vector<float> divisors = spec::rope_frequencies(unscaled, 1).inv_freq;
    const std::vector<float> scaled = spec::rope_frequencies(spec, 1).inv_freq;
    for (std::size_t i = 0; i < divisors.size(); ++i) divisors[i] /= scaled[i];
    return divisors;
}

}  // namespace unsloth::formats::gguf
