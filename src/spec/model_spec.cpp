#include "unsloth/spec/model_spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

/// theta^(-2i/d) for i in [0, d/2).
std::vector<double> geometric_frequencies(double theta, int64_t d) {
    std::vector<double> frequencies(static_cast<std::size_t>(d / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i)
        frequencies[i] = 1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(d));
    return frequencies;
}

int64_t original_length(const ModelSpec& spec, const RopeSpec& rope) {
    const int64_t length = rope.original_max_position_embeddings;
    return length > 0 ? length : spec.max_position_embeddings;
}

/// NTK-aware scaling: beyond the trained length the base grows with the sequence.
double dynamic_theta(const ModelSpec& spec, const RopeSpec& rope, int64_t seq_len) {
    const auto trained = static_cast<double>(spec.max_position_embeddings);
    const double length = std::max(static_cast<double>(seq_len), trained);
    const double factor = rope.factor;
    const auto d = static_cast<double>(spec.rotary_dim(rope));
    return rope.theta * std::pow(factor * length / trained - (factor - 1.0), d / (d - 2.0));
}

/// Llama 3.1: long wavelengths are interpolated, short ones kept, those between are blended.
void scale_llama3(const ModelSpec& spec, const RopeSpec& rope, std::vector<double>& frequencies) {
    const auto length = static_cast<double>(original_length(spec, rope));
    for (double& frequency : frequencies) {
        const double wavelength = 2.0 * std::numbers::pi / frequency;
        if (wavelength > length / rope.low_freq_factor) {
            frequency /= rope.factor;
        } else if (wavelength >= length / rope.high_freq_factor) {
            const double smooth =
                (length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
            frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
        }
    }
}

/// The dimension that turns `rotations` times over the original length (YaRN, arXiv:2309.00071, section 3.2).
double yarn_dimension(const ModelSpec& spec, const RopeSpec& rope, double rotations) {
    const double turns = static_cast<double>(original_length(spec, rope)) / (rotations * 2.0 * std::numbers::pi);
    return static_cast<double>(spec.rotary_dim(rope)) * std::log(turns) / (2.0 * std::log(rope.theta));
}

void scale_yarn(const ModelSpec& spec, const RopeSpec& rope, std::vector<double>& frequencies) {
    double low = yarn_dimension(spec, rope, rope.beta_fast);
    double high = yarn_dimension(spec, rope, rope.beta_slow);
    if (rope.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(spec.rotary_dim(rope) - 1));
    if (low == high) high += 0.001;  // a ramp of no width would divide by zero
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1.0 - ramp);
    }
}

double yarn_mscale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_scaling(const RopeSpec& rope) {
    if (rope.attention_factor) return *rope.attention_factor;
    const double numerator = rope.mscale.value_or(0.0);
    const double denominator = rope.mscale_all_dim.value_or(0.0);
    if (numerator != 0.0 && denominator != 0.0)
        return yarn_mscale(rope.factor, numerator) / yarn_mscale(rope.factor, denominator);
    return yarn_mscale(rope.factor, 1.0);
}

/// LongRoPE (arXiv:2402.13753): found by search, one set of factors for the trained length and one beyond it.
void scale_longrope(const ModelSpec& spec, const RopeSpec& rope, int64_t seq_len, std::vector<double>& frequencies) {
    const std::vector<double>& factors = seq_len > original_length(spec, rope) ? rope.long_factor : rope.short_factor;
    UNSLOTH_CHECK(factors.size() == frequencies.size(), factors.size(), " factors");
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
}

double longrope_attention_scaling(const ModelSpec& spec, const RopeSpec& rope) {
    if (rope.attention_factor) return *rope.attention_factor;
    if (rope.factor <= 1.0) return 1.0;
    return std::sqrt(1.0 + std::log(rope.factor) / std::log(static_cast<double>(original_length(spec, rope))));
}

/// With this number of experts in each layer that has them.
double mean_intermediate_size(const ModelSpec& spec, int64_t experts) {
    double sum = 0;
    for (const LayerSpec& layer : spec.layers)
        sum += static_cast<double>(layer.experts ? experts * spec.experts->intermediate_size : spec.intermediate_size);
    return sum / static_cast<double>(spec.layers.size());
}

}  // namespace

std::string path_of(const LinearId& id, bool crosses) {
    constexpr std::string_view self = "self_attn.";
    const std::string_view path = path_of(id.projection);
    if (crosses && path.starts_with(self)) return cat("cross_attn.", path.substr(self.size()));
    return id.expert < 0 ? std::string(path) : cat("mlp.experts.", id.expert, path.substr(path.find('.')));
}

bool ModelSpec::has_cross_layers() const {
    return std::ranges::any_of(layers, &LayerSpec::crosses);
}

bool ModelSpec::has_rope(RopeSpec::Type type) const {
    return std::ranges::any_of(ropes, [&](const RopeSpec& rope) { return rope.type == type; });
}

std::string ModelSpec::stored_name(std::string_view own) const {
    constexpr std::string_view inner = "model.";
    if (part_of.empty() || part_names == PartNames::none) return std::string(own);
    if (part_names == PartNames::before) return cat(stem(), own);
    return own.starts_with(inner) ? cat(inner, stem(), own.substr(inner.size())) : std::string(own);
}

bool ModelSpec::has(Projection p) const {
    return std::ranges::find(linears, p) != linears.end();
}

int64_t ModelSpec::rotary_dim(const RopeSpec& rope) const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope.rotated_share);
}

int64_t ModelSpec::usable_positions() const {
    const auto trained = static_cast<double>(max_position_embeddings);
    constexpr double most = 1e15;  // whatever the factor
    const RopeSpec& rope = ropes.front();
    return rope.type == RopeSpec::Type::dynamic ? static_cast<int64_t>(std::min(trained * rope.factor, most))
                                                : max_position_embeddings;
}

int64_t ModelSpec::out_features(Projection p) const {
    switch (p) {
        case Projection::q:
            return (attention_output_gate ? 2 : 1) * q_size();
        case Projection::k:
        case Projection::v:
            return kv_size();
        case Projection::qkv:
            return q_size() + 2 * kv_size();
        case Projection::gate:
        case Projection::up:
            return intermediate_size;
        case Projection::gate_up:
            return 2 * intermediate_size;
        case Projection::experts_gate_up:
            return 2 * experts->intermediate_size;
        case Projection::o:
        case Projection::down:
        case Projection::experts_down:
        case Projection::delta_out:
            return hidden_size;
        case Projection::delta_qkv:
            return delta->channels();
        case Projection::delta_z:
            return delta->values();
        case Projection::delta_b:
        case Projection::delta_a:
            return delta->value_heads;
    }
    UNSLOTH_CHECK(false, "projection ", static_cast<int>(p));
    return 0;
}

int64_t ModelSpec::in_features(Projection p) const {
    if (p == Projection::o) return q_size();
    if (p == Projection::delta_out) return delta->values();
    if (p == Projection::experts_down) return experts->intermediate_size;
    return p == Projection::down ? intermediate_size : hidden_size;
}

int64_t ModelSpec::out_features(const LinearId& id) const {
    if (id.expert < 0) return out_features(id.projection);
    return id.projection == Projection::down ? hidden_size : experts->intermediate_size;
}

int64_t ModelSpec::in_features(const LinearId& id) const {
    if (id.expert < 0) return in_features(id.projection);
    return id.projection == Projection::down ? experts->intermediate_size : hidden_size;
}

std::vector<Projection> ModelSpec::projections_of(int64_t layer) const {
    std::vector<Projection> own;
    for (const Projection p : linears)
        if (is_of_mlp(p) ? !has_experts(layer) : is_of_delta(p) == has_delta(layer)) own.push_back(p);
    return own;
}

std::vector<Projection> ModelSpec::adaptable_of(int64_t layer) const {
    std::vector<Projection> own = projections_of(layer);
    std::erase_if(own, has_no_adapter);
    if (has_experts(layer)) own.insert(own.end(), {Projection::experts_gate_up, Projection::experts_down});
    return own;
}

std::vector<LinearId> ModelSpec::linears_of(int64_t layer) const {
    std::vector<LinearId> own;
    for (const Projection p : projections_of(layer)) own.push_back({static_cast<int>(layer), p});
    if (!has_experts(layer)) return own;
    for (int expert = 0; expert < static_cast<int>(experts->count); ++expert)
        for (const Projection p : {Projection::gate, Projection::up, Projection::down})
            own.push_back({static_cast<int>(layer), p, expert});
    return own;
}

double ModelSpec::active_intermediate_size() const {
    return experts ? mean_intermediate_size(*this, experts->top_k) : static_cast<double>(intermediate_size);
}

double ModelSpec::whole_intermediate_size() const {
    return experts ? mean_intermediate_size(*this, experts->count) : static_cast<double>(intermediate_size);
}

bool ModelSpec::has_bias(Projection p) const {
    switch (p) {
        case Projection::q:
        case Projection::k:
        case Projection::v:
        case Projection::qkv:
            return qkv_bias;
        case Projection::o:
            return o_bias;
        case Projection::delta_qkv:
        case Projection::delta_z:
        case Projection::delta_b:
        case Projection::delta_a:
        case Projection::delta_out:
            return false;
        default:
            return mlp_bias;
    }
}

RopeFrequencies rope_frequencies(const ModelSpec& spec, int64_t seq_len, std::size_t place) {
    UNSLOTH_CHECK(spec.head_dim > 0 && spec.head_dim % 2 == 0, "head_dim ", spec.head_dim);
    const RopeSpec& rope = spec.ropes.at(place);
    const double theta = rope.type == RopeSpec::Type::dynamic ? dynamic_theta(spec, rope, seq_len) : rope.theta;
    std::vector<double> frequencies = geometric_frequencies(theta, spec.rotary_dim(rope));
    RopeFrequencies result;
    switch (rope.type) {
        case RopeSpec::Type::standard:
        case RopeSpec::Type::dynamic:
            break;
        case RopeSpec::Type::linear:
            for (double& frequency : frequencies) frequency /= rope.factor;
            break;
        case RopeSpec::Type::llama3:
            scale_llama3(spec, rope, frequencies);
            break;
        case RopeSpec::Type::yarn:
            scale_yarn(spec, rope, frequencies);
            result.attention_scaling = static_cast<float>(yarn_attention_scaling(rope));
            break;
        case RopeSpec::Type::longrope:
            scale_longrope(spec, rope, seq_len, frequencies);
            result.attention_scaling = static_cast<float>(longrope_attention_scaling(spec, rope));
            break;
    }
    result.inv_freq.assign(frequencies.begin(), frequencies.end());
    return result;
}

std::vector<int32_t> rope_axes(const ModelSpec& spec, const RopeSpec& rope) {
    std::vector<int32_t> axes(static_cast<std::size_t>(spec.rotary_dim(rope) / 2), 0);
    for (std::size_t i = 0; i < axes.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t turn = at % 3;
        if (rope.interleaved)
            axes[i] = at < 3 * rope.sections[static_cast<std::size_t>(turn)] ? static_cast<int32_t>(turn) : 0;
        else
            axes[i] = at < rope.sections[0] ? 0 : at < rope.sections[0] + rope.sections[1] ? 1 : 2;
    }
    return axes;
}

float query_multiplier(const ModelSpec& spec, const RopeSpec& rope, int64_t position) {
    const auto turns = static_cast<float>(position / original_length(spec, rope));
    return 1.0F + static_cast<float>(rope.query_beta) * std::log(1.0F + turns);
}

}  // namespace unsloth::spec
