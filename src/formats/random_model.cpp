#include "unsloth/formats/random_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "formats/experts_layout.h"
#include "formats/families/family.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/philox.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/mxfp4.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/formats/shards.h"
#include "unsloth/spec/convert.h"
#include "unsloth/spec/dynamic_map.h"
#include "unsloth/spec/quant4_host.h"
#include "unsloth/spec/tensor_table.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::formats {
namespace {

constexpr float initializer_range = 0.02F;  // transformers' default
constexpr int64_t piece = 1 << 18;          // elements or bytes that a thread makes before it writes them

/// Names the draws of one tensor; `kind` tells its normal values from its codes.
struct Draws {
    uint64_t seed;
    uint32_t tensor, kind;
    PhiloxWords operator()(int64_t block) const {
        const auto counter = static_cast<uint64_t>(block);
        return philox4x32(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                          static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), tensor, kind);
    }
};
constexpr uint32_t normal_values = 0x1417, uniform_bytes = 0x1418, uniform_scales = 0x1419;

/// Four normal values from one draw (Box and Muller, 1958).
void fill_normal(const Draws& draws, int64_t begin, int64_t end, float* out) {
    for (int64_t i = begin; i < end; i += 4) {
        const PhiloxWords words = draws(i / 4);
        float normal[4];
        for (int pair = 0; pair < 2; ++pair) {
            const float radius = std::sqrt(-2.0F * std::log(1.0F - unit_float(words.w[2 * pair])));
            const float angle = 2.0F * std::numbers::pi_v<float> * unit_float(words.w[2 * pair + 1]);
            normal[2 * pair] = radius * std::cos(angle);
            normal[2 * pair + 1] = radius * std::sin(angle);
        }
        for (int64_t j = i; j < std::min(end, i + 4); ++j) out[j - begin] = normal[j - i] * initializer_range;
    }
}

void fill_bytes(const Draws& draws, int64_t begin, int64_t end, std::byte* out) {
    for (int64_t i = begin; i < end; i += 16) {
        const PhiloxWords words = draws(i / 16);
        std::memcpy(out + (i - begin), words.w, static_cast<std::size_t>(std::min<int64_t>(16, end - i)));
    }
}

/// Exponents of MXFP4's blocks, of uniform bytes: 2^-7 so often, else 2^-8, that uniform codes, whose mean square is
/// 68.5 / 8, have the deviation of normal weights.
constexpr int larger_of_256 = 176;
void fill_exponents(const Draws& draws, int64_t begin, int64_t end, std::byte* out) {
    fill_bytes(draws, begin, end, out);
    for (std::byte* scale = out; scale < out + (end - begin); ++scale)
        *scale = static_cast<std::byte>(127 - (std::to_integer<int>(*scale) < larger_of_256 ? 7 : 8));
}

/// How often a level is drawn, of 256 times. All alike would have a mean, for the levels have one, and a matrix with a
/// mean points into one direction: some of the highest level's go to zero's.
constexpr int times(int level) {
    return level == 15 ? 10 : level == 7 ? 22 : 16;
}

std::array<uint8_t, 256> level_of_byte() {
    std::array<uint8_t, 256> levels{};
    std::size_t i = 0;
    for (int level = 0; level < 16; ++level)
        for (int k = 0; k < times(level); ++k) levels[i++] = static_cast<uint8_t>(level);
    return levels;
}

/// Two codes a byte, of two random bytes.
void fill_codes(const Draws& draws, int64_t begin, int64_t end, std::byte* out) {
    static const std::array<uint8_t, 256> levels = level_of_byte();
    std::vector<std::byte> random(static_cast<std::size_t>(2 * (end - begin)));
    fill_bytes(draws, 2 * begin, 2 * end, random.data());
    for (std::size_t i = 0; i < random.size() / 2; ++i)
        out[i] = static_cast<std::byte>(levels[std::to_integer<uint8_t>(random[2 * i])] << 4 |
                                        levels[std::to_integer<uint8_t>(random[2 * i + 1])]);
}

/// The scale at which codes have the standard deviation that normal weights would have.
float code_scale() {
    float squares = 0;
    for (int level = 0; level < 16; ++level)
        squares += static_cast<float>(times(level)) * spec::nf4_code[level] * spec::nf4_code[level];
    return initializer_range / std::sqrt(squares / 256);
}

class RandomModelWriter {
  public:
    RandomModelWriter(const RandomModel& model, const std::filesystem::path& folder) : model_(model), folder_(folder) {
        const std::vector<spec::TensorRule> table = spec::tensor_table(model.spec);
        for (const StoredTensor& stored : stored_tensors(model.spec, table)) {
            rules_.push_back(table[stored.rules.front()]);
            rules_.back().hf_name = stored.name;
            rules_.back().shape = stored.shape;
            if (stored.rules.size() > 1 && quantised(rules_.back())) refuse_quantised_experts(model.spec);
        }
        add_tower(model.spec);
        if (model.mxfp4 && std::ranges::none_of(rules_, [this](const auto& rule) { return in_mxfp4(rule); }))
            throw Error("model.unsupported", cat("a ", model.spec.model_type, " has no weights in MXFP4"),
                        "MXFP4 is for gpt-oss' experts.");
    }

    std::size_t write() {
        std::vector<std::size_t> sizes;
        std::size_t total = 0;
        for (const spec::TensorRule& rule : rules_) {
            std::size_t bytes = 0;
            for (const TensorDecl& decl : declarations(rule)) bytes += decl.bytes();
            sizes.push_back(bytes);
            total += bytes;
        }
        const auto shards = split_into_shards(sizes, default_shard_bytes);
        for (std::size_t s = 0; s < shards.size(); ++s) write_shard(shards[s], shard_file_name(s, shards.size()));
        if (shards.size() > 1) write_file_atomically(folder_ / shard_index_file, shard_index_json(where_, total));
        auto quantization = model_.nf4 || model_.mxfp4 ? std::optional(QuantizationConfig{}) : std::nullopt;
        if (model_.mxfp4) {
            quantization->quant_method = "mxfp4";
            quantization->llm_int8_skip_modules = {"model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                   "model.embed_tokens", "lm_head"};
        }
        if (model_.nf4 && model_.spec.vision) {  // the tower is not; a list replaces what transformers leaves by itself
            quantization->llm_int8_skip_modules = tower_modules(*model_.spec.vision);
            quantization->llm_int8_skip_modules->emplace_back("lm_head");
        }
        write_file_atomically(folder_ / "config.json",
                              write_model_config(model_.spec, quantization, model_.original_config));
        return total;
    }

  private:
    /// Named as the text part's tensors are: before transformers 4.52 no module held both parts.
    void add_tower(const spec::ModelSpec& spec) {
        if (!spec.vision) return;
        const bool within = spec.stored_name("model.norm.weight").starts_with("model.language_model.");
        const std::string module = cat(within ? "model." : "", spec.vision->tiles ? "" : "visual.");
        for (const spec::VisionTensor& tensor : spec::vision_tensors(*spec.vision)) {
            const bool norm =
                tensor.name.find("norm") != std::string::npos || tensor.name.find("ln_q") != std::string::npos;
            const bool matrix = tensor.shape.size() > 1, scales = norm && tensor.name.ends_with(".weight");
            rules_.push_back({cat(module, tensor.name),
                              matrix   ? spec::TensorRole::embed_tokens  // stays in 16 bit
                              : scales ? spec::TensorRole::final_norm
                                       : spec::TensorRole::bias,
                              {-1},
                              tensor.shape,
                              matrix});
        }
    }

    bool quantised(const spec::TensorRule& rule) const { return model_.nf4 && rule.role == spec::TensorRole::linear; }

    /// Of all experts as one tensor, [E, K, N].
    bool in_mxfp4(const spec::TensorRule& rule) const {
        return model_.mxfp4 && rule.role == spec::TensorRole::linear && rule.shape.size() == 3 &&
               rule.shape[1] % spec::mxfp4_block == 0;
    }

    std::vector<TensorDecl> declarations(const spec::TensorRule& rule) const {
        if (in_mxfp4(rule)) return mxfp4_declarations(rule.hf_name, rule.shape[0], rule.shape[2], rule.shape[1]);
        if (quantised(rule)) return quant4_declarations(rule.hf_name, rule.shape[0], rule.shape[1], model_.spec.dtype);
        return {{rule.hf_name, model_.spec.dtype, rule.shape}};
    }

    void write_shard(const std::vector<std::size_t>& members, const std::string& file) {
        std::vector<TensorDecl> declared;
        for (const std::size_t i : members)
            for (TensorDecl& decl : declarations(rules_[i])) {
                where_[decl.name] = file;
                declared.push_back(std::move(decl));
            }
        SafetensorsWriter writer(folder_ / file, std::move(declared));
        for (const std::size_t i : members) {
            if (in_mxfp4(rules_[i]))
                write_mxfp4(writer, rules_[i], static_cast<uint32_t>(i));
            else if (quantised(rules_[i]))
                write_codes(writer, rules_[i], static_cast<uint32_t>(i));
            else
                write_values(writer, rules_[i], static_cast<uint32_t>(i));
        }
        writer.finish();
    }

    /// fill(begin, end, bytes) makes the elements of a tensor, `size` bytes each; pieces are made and written in
    /// several threads at once.
    template <class Fill>
    static void write_pieces(SafetensorsWriter& writer, const std::string& name, int64_t count, std::size_t size,
                             const Fill& fill) {
        parallel_ranges((count + piece - 1) / piece, 1, [&](int64_t first, int64_t last) {
            std::vector<std::byte> bytes(static_cast<std::size_t>(piece) * size);
            for (int64_t begin = first * piece; begin < std::min(count, last * piece); begin += piece) {
                stop_if_interrupted();
                const int64_t end = std::min(count, begin + piece);
                fill(begin, end, bytes.data());
                writer.write(name, static_cast<std::size_t>(begin) * size,
                             std::span(bytes).first(static_cast<std::size_t>(end - begin) * size));
            }
        });
    }

    static float constant_of(const spec::TensorRule& rule) {
        const bool of_net = rule.role == spec::TensorRole::delta_norm || rule.role == spec::TensorRole::delta_dt_bias;
        return spec::is_norm(rule.role) ? 1.0F - rule.offset : of_net ? 1.0F : 0.0F;
    }

    void write_values(SafetensorsWriter& writer, const spec::TensorRule& rule, uint32_t tensor) const {
        const int64_t count =
            std::accumulate(rule.shape.begin(), rule.shape.end(), int64_t{1}, std::multiplies<int64_t>());
        const spec::DType dtype = model_.spec.dtype;
        const Draws draws{model_.seed, tensor, normal_values};
        write_pieces(writer, rule.hf_name, count, spec::size_of(dtype),
                     [&](int64_t begin, int64_t end, std::byte* out) {
                         std::vector<float> values(static_cast<std::size_t>(end - begin), constant_of(rule));
                         if (rule.may_be_quantised || rule.role == spec::TensorRole::router ||
                             rule.role == spec::TensorRole::delta_conv)
                             fill_normal(draws, begin, end, values.data());
                         if (rule.role == spec::TensorRole::delta_a_log)  // paces up to 16, evenly
                             for (int64_t i = begin; i < end; ++i)
                                 values[static_cast<std::size_t>(i - begin)] =
                                     std::log(16.0F * (static_cast<float>(i) + 0.5F) / static_cast<float>(count));
                         spec::convert_from_f32(dtype, values.data(), end - begin, out);
                     });
    }

    void write_codes(SafetensorsWriter& writer, const spec::TensorRule& rule, uint32_t tensor) const {
        Quant4Owned weight;  // but for its codes and scales, which are written as they are drawn
        weight.rows = rule.shape[0];
        weight.cols = rule.shape[1];
        weight.nested_offset = code_scale();
        // Scales within a quarter of their mean: the doubly quantised map has entries in [-1, 1].
        weight.nested_absmax.assign(declarations(rule)[2].bytes() / sizeof(float), weight.nested_offset / 4);
        weight.tables.assign(std::begin(spec::nf4_code), std::end(spec::nf4_code));
        const auto& map = spec::dynamic_map_256(true);
        weight.tables.insert(weight.tables.end(), map.begin(), map.end());
        for (const TensorDecl& decl : declarations(rule)) {
            const bool codes = decl.name == rule.hf_name, scales = decl.name == rule.hf_name + ".absmax";
            if (!codes && !scales) continue;
            const Draws draws{model_.seed, tensor, codes ? uniform_bytes : uniform_scales};
            write_pieces(writer, decl.name, static_cast<int64_t>(decl.bytes()), 1,
                         [&](int64_t begin, int64_t end, std::byte* out) {
                             (codes ? fill_codes : fill_bytes)(draws, begin, end, out);
                         });
        }
        for (const TensorBlob& blob : quant4_companions(rule.hf_name, weight, model_.spec.dtype))
            writer.append(blob.decl.name, blob.data);
    }

    void write_mxfp4(SafetensorsWriter& writer, const spec::TensorRule& rule, uint32_t tensor) const {
        const std::vector<TensorDecl> declared = declarations(rule);
        for (std::size_t part = 0; part < declared.size(); ++part) {
            const Draws draws{model_.seed, tensor, part == 0 ? uniform_bytes : uniform_scales};
            write_pieces(writer, declared[part].name, static_cast<int64_t>(declared[part].bytes()), 1,
                         [&](int64_t begin, int64_t end, std::byte* out) {
                             (part == 0 ? fill_bytes : fill_exponents)(draws, begin, end, out);
                         });
        }
    }

    const RandomModel& model_;
    const std::filesystem::path& folder_;
    std::vector<spec::TensorRule> rules_;
    std::map<std::string, std::string> where_;
};

}  // namespace

std::size_t write_random_model(const RandomModel& model, const std::filesystem::path& folder) {
    return RandomModelWriter(model, folder).write();
}

}  // namespace unsloth::formats
