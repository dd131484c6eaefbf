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
    out.add(prefix + "rope.dimension_count", u32(spec.rotary_dim(rope)));
    if (rope.query_beta != 0) out.add(prefix + "attention.temperature_scale", static_cast<float>(rope.query_beta));
    const std::string scaling = prefix + "rope.scaling.";
    if (rope.type == Type::longrope) {
        const int64_t original = rope.original_max_position_embeddings;
        out.add(scaling + "original_context_length", u32(original > 0 ? original : spec.max_position_embeddings));
        out.add(scaling + "attn_factor", spec::rope_frequencies(spec, 1).attention_scaling);
    }
    if (rope.type != Type::linear && rope.type != Type::yarn) return;
    out.add(scaling + "type", rope.type == Type::linear ? "linear" : "yarn");
    out.add(scaling + "factor", static_cast<float>(rope.factor));
    if (rope.type == Type::linear) return;
    const int64_t original = rope.original_max_position_embeddings;
    out.add(scaling + "original_context_length", u32(original > 0 ? original : spec.max_position_embeddings));
    out.add(scaling + "yarn_beta_fast", static_cast<float>(rope.beta_fast));
    out.add(scaling + "yarn_beta_slow", static_cast<float>(rope.beta_slow));
    // Its log multiplier is the model's mscale_all_dim where mscale is 1: it then computes the factor as the model
    // does.
    if (family_of(spec).gguf.query_beta && !rope.attention_factor && rope.mscale == 1.0 && rope.mscale_all_dim)
        return out.add(scaling + "yarn_log_multiplier", static_cast<float>(*rope.mscale_all_dim));
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
        log::warning("the id ", *value, " of the ", role, " token is outside of the vocabulary: omitted");
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

using Windows = GgufArchitecture::Windows;

bool ropes_of_layers_are_known(const spec::ModelSpec& spec, const GgufArchitecture& architecture) {
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
        const spec::LayerSpec& layer = spec.layers[i];
        const auto number = static_cast<int64_t>(i) + 1;
        const int64_t interval = architecture.no_rope_interval;
        const bool none = interval > 0 && number % interval == 0, windowed = layer.window > 0;
        const bool local = architecture.windows == Windows::by_layer || architecture.windows == Windows::five_of_six;
        if (layer.rope != (none ? spec::LayerSpec::no_rope : local && windowed ? 1 : 0)) return false;
        if (architecture.windows == Windows::five_of_six && windowed != (number % 6 != 0)) return false;
        if (!local || !windowed) continue;
        const spec::RopeSpec& rope = spec.ropes[1];
        const double theta = architecture.windows == Windows::five_of_six ? 10000.0 : spec.ropes[0].theta;
        if (rope.type != spec::RopeSpec::Type::standard || rope.theta != theta) return false;
    }
    return true;
}

/// llama.cpp takes head_dim^-0.5, and of a Gemma 3 of 62 layers the size that heads would have of the hidden size.
bool scale_is_known(const spec::ModelSpec& spec) {
    const int64_t size = spec.num_layers == 62 ? spec.hidden_size / spec.num_heads : spec.head_dim;
    return std::abs(*spec.score_scale * std::sqrt(static_cast<double>(size)) - 1) < 1e-6;
}

void add_window_fields(const spec::ModelSpec& spec, const std::string& prefix, GgufMetadata& out) {
    const Windows windows = family_of(spec).gguf.windows;
    if (windows == Windows::none) return;
    const int64_t window = common_window(spec);
    if (window > 0 || windows == Windows::common) out.add(prefix + "attention.sliding_window", u32(window));
    if (windows != Windows::by_layer || window == 0) return;
    std::vector<bool> windowed;
    for (const spec::LayerSpec& layer : spec.layers) windowed.push_back(layer.window > 0);
    out.add(prefix + "attention.sliding_window_pattern", windowed);
}

void add_multipliers(const spec::ModelSpec& spec, const std::string& prefix, GgufMetadata& out) {
    if (!family_of(spec).gguf.multipliers) return;
    out.add(prefix + "embedding_scale", static_cast<float>(spec.embedding_multiplier));
    out.add(prefix + "residual_scale", static_cast<float>(spec.residual_multiplier));
    if (spec.score_scale) out.add(prefix + "attention.scale", static_cast<float>(*spec.score_scale));
    out.add(prefix + "logit_scale", static_cast<float>(spec.logits_divisor));
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
    const spec::RopeSpec& rope = spec.ropes.front();
    if (spec.delta)
        throw Error(
            "export.unsupported",
            cat("this program writes no GGUF of a model whose layers have gated delta nets (", spec.model_type, ")"),
            "Write safetensors (unsloth-train merge), and convert them with llama.cpp's convert_hf_to_gguf.py.");
    if (rope.by_axes() || spec.has_cross_layers())
        throw Error(
            "export.unsupported",
            cat("this program writes no GGUF of a model that sees images, and this is one (", spec.part_of, ")"),
            "Write safetensors (unsloth-train merge), and convert them with llama.cpp's convert_hf_to_gguf.py.");
    if (!architecture.all_biases && (spec.o_bias || spec.mlp_bias))
        refuse("biases on the output projection or the MLP");
    if (!architecture.rope_divisors && spec.has_rope(spec::RopeSpec::Type::llama3))
        refuse("RoPE scaling of type llama3");
    if (!architecture.any_head_size && spec.q_size() != spec.hidden_size)
        refuse("heads that are not hidden_size wide together");
    if (spec.experts && !architecture.experts)
        throw Error(
            "export.unsupported",
            cat("this program writes no GGUF of a model of experts of this family, and this is one (", spec.model_type,
                ")"),
            "Write safetensors (unsloth-train merge), and convert them with llama.cpp's convert_hf_to_gguf.py.");
    if (architecture.experts && !std::ranges::all_of(spec.layers, &spec::LayerSpec::experts))
        refuse("layers without experts (mlp_only_layers, decoder_sparse_step)");
    if (spec.experts && spec.experts->weights != spec::RouterWeights::of_chosen)
        refuse("weights of experts that do not sum to 1 (norm_topk_prob false)");
    if (rope.type == spec::RopeSpec::Type::longrope && !architecture.longrope)
        refuse("RoPE scaling of type longrope that this program writes");
    if (rope.type == spec::RopeSpec::Type::dynamic)
        log::warning("llama.cpp has no dynamic RoPE: positions from ", spec.max_position_embeddings, " on will differ");
    if (rope.type == spec::RopeSpec::Type::yarn && (rope.beta_fast != 32 || rope.beta_slow != 1 || !rope.truncate))
        log::warning("llama.cpp reads neither beta_fast and beta_slow nor truncate of YaRN for '", architecture.name,
                     "': give them to it by --yarn-beta-fast ", rope.beta_fast, " --yarn-beta-slow ", rope.beta_slow);
    if (!ropes_of_layers_are_known(spec, architecture)) refuse("layers whose positions are encoded in another way");
    if (spec.score_scale && !architecture.multipliers && !scale_is_known(spec))
        refuse("scale of attention's scores but by the size of heads");
    const auto layer = std::ranges::find_if(spec.layers, [](const spec::LayerSpec& layer) { return layer.window > 0; });
    if (layer != spec.layers.end() && architecture.windows == GgufArchitecture::Windows::none)
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
    if (spec.experts) {
        out.add(prefix + "expert_count", u32(spec.experts->count));
        out.add(prefix + "expert_used_count", u32(spec.experts->top_k));
        out.add(prefix + "expert_feed_forward_length", u32(spec.experts->intermediate_size));
    }
    add_rope_fields(spec, prefix, out);
    add_window_fields(spec, prefix, out);
    add_multipliers(spec, prefix, out);
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

RopeTensors rope_tensors(const spec::ModelSpec& spec) {
    const spec::RopeSpec& rope = spec.ropes.front();
    const auto floats = [](const std::vector<double>& values) {
        return std::vector<float>(values.begin(), values.end());
    };
    if (rope.type == spec::RopeSpec::Type::longrope)
        return {{"rope_factors_long.weight", floats(rope.long_factor)},
                {"rope_factors_short.weight", floats(rope.short_factor)}};
    if (rope.type != spec::RopeSpec::Type::llama3) return {};
    spec::ModelSpec unscaled = spec;
    unscaled.ropes.front().type = spec::RopeSpec::Type::standard;
    std::vector<float> divisors = spec::rope_frequencies(unscaled, 1).inv_freq;
    const std::vector<float> scaled = spec::rope_frequencies(spec, 1).inv_freq;
    for (std::size_t i = 0; i < divisors.size(); ++i) divisors[i] /= scaled[i];
    return {{"rope_freqs.weight", std::move(divisors)}};
}

}  // namespace unsloth::formats::gguf
