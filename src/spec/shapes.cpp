#include "unsloth/spec/shapes.h"

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::spec {
namespace {

struct Shape {
    const char* name;
    Architecture architecture;
    int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, positions;
    double eps, theta;
    bool tied, llama3_rope;
    double rope_factor;
};

// From the config.json files that the models' authors published.
constexpr Shape shapes[] = {
    {"llama-3.1-8b", Architecture::llama, 4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 500000, false, true, 8},
    {"llama-3.1-70b", Architecture::llama, 8192, 28672, 80, 64, 8, 128, 128256, 131072, 1e-5, 500000, false, true, 8},
    {"llama-3.1-405b", Architecture::llama, 16384, 53248, 126, 128, 8, 128, 128256, 131072, 1e-5, 500000, false, true,
     8},
    {"llama-3.2-1b", Architecture::llama, 2048, 8192, 16, 32, 8, 64, 128256, 131072, 1e-5, 500000, true, true, 32},
    {"llama-3.2-3b", Architecture::llama, 3072, 8192, 28, 24, 8, 128, 128256, 131072, 1e-5, 500000, true, true, 32},
    {"llama-2-7b", Architecture::llama, 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e-5, 10000, false, false, 1},
    {"llama-2-13b", Architecture::llama, 5120, 13824, 40, 40, 40, 128, 32000, 4096, 1e-5, 10000, false, false, 1},
    {"mistral-7b", Architecture::mistral, 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e-5, 1000000, false, false, 1},
    {"qwen2.5-7b", Architecture::qwen2, 3584, 18944, 28, 28, 4, 128, 152064, 32768, 1e-6, 1000000, false, false, 1},
    {"qwen3-8b", Architecture::qwen3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e-6, 1000000, false, false, 1},
    {"qwen3-14b", Architecture::qwen3, 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e-6, 1000000, false, false, 1},
    // Small Llamas to train from scratch: for parity and quality checks that need real, learned weights.
    {"llama-110m", Architecture::llama, 768, 2048, 12, 12, 4, 64, 32000, 4096, 1e-5, 10000, true, false, 1},
    {"llama-15m", Architecture::llama, 288, 768, 6, 6, 6, 48, 32000, 2048, 1e-5, 10000, true, false, 1},
};

const char* model_type_of(Architecture a) {
    switch (a) {
        case Architecture::llama:
            return "llama";
        case Architecture::mistral:
            return "mistral";
        case Architecture::qwen2:
            return "qwen2";
        case Architecture::qwen3:
            return "qwen3";
    }
    return "";
}

}  // namespace

std::vector<std::string> builtin_shape_names() {
    std::vector<std::string> names;
    for (const Shape& shape : shapes) names.emplace_back(shape.name);
    return names;
}

ModelSpec builtin_shape(const std::string& name) {
    std::string known;
    for (const Shape& s : shapes) {
        known += cat(known.empty() ? "" : ", ", s.name);
        if (name != s.name) continue;
        ModelSpec spec;
        spec.architecture = s.architecture;
        spec.model_type = model_type_of(s.architecture);
        spec.hidden_size = s.hidden;
        spec.intermediate_size = s.intermediate;
        spec.num_layers = s.layers;
        spec.num_heads = s.heads;
        spec.num_kv_heads = s.kv_heads;
        spec.head_dim = s.head_dim;
        spec.vocab_size = s.vocab;
        spec.max_position_embeddings = s.positions;
        spec.rms_norm_eps = s.eps;
        spec.rope.theta = s.theta;
        if (s.llama3_rope) {
            spec.rope.type = RopeSpec::Type::llama3;
            spec.rope.factor = s.rope_factor;
            spec.rope.low_freq_factor = 1;
            spec.rope.high_freq_factor = 4;
            spec.rope.original_max_position_embeddings = 8192;
        }
        spec.tie_word_embeddings = s.tied;
        spec.qkv_bias = s.architecture == Architecture::qwen2;
        spec.sliding_window.assign(static_cast<std::size_t>(s.layers), 0);
        spec.qk_norm = s.architecture == Architecture::qwen3;
        if (s.vocab == 128256) {
            spec.bos_token_id = 128000;
            spec.eos_token_ids = {128001};
        } else if (s.vocab == 32000) {
            spec.bos_token_id = 1;
            spec.eos_token_ids = {2};
        } else {
            spec.eos_token_ids = {151645};
        }
        return spec;
    }
    const std::string meant = did_you_mean(nearest(name, builtin_shape_names()));
    throw Error("option.invalid-value", cat("--shape ", name, ": no such shape"),
                cat(meant, meant.empty() ? "" : " ", "Known: ", known, "; or give --model_config with a config.json."));
}

}  // namespace unsloth::spec
