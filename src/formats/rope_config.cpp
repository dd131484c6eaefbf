#include "formats/rope_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

constexpr const char* original_length_key = "original_max_position_embeddings";  // in the rope's object, or next to it

spec::RopeSpec::Type rope_type(const JsonReader& rope, const Family& family) {
    auto name = rope.string("rope_type");
    if (!name) name = rope.string("type");
    if (family.longrope_by_old_names && name && (*name == "su" || *name == "yarn"))
        return spec::RopeSpec::Type::longrope;
    if (!name || *name == "default") return spec::RopeSpec::Type::standard;
    if (*name == "mrope" && family.axes != Family::Axes::none) return spec::RopeSpec::Type::standard;
    if (*name == "linear") return spec::RopeSpec::Type::linear;
    if (*name == "dynamic") return spec::RopeSpec::Type::dynamic;
    if (*name == "yarn") return spec::RopeSpec::Type::yarn;
    if (*name == "llama3") return spec::RopeSpec::Type::llama3;
    if (*name == "longrope") return spec::RopeSpec::Type::longrope;
    throw Error("model.unsupported", cat(rope["rope_type"].where(), ": '", *name, "' is not supported"),
                "Supported are default, linear, dynamic, yarn, llama3 and longrope.");
}

/// In config.json itself, or in a rope's object.
void read_rotated_share(const JsonReader& reader, const Family& family, spec::RopeSpec& rope) {
    const auto share = reader.number("partial_rotary_factor");
    if (!share) return;
    if (!family.partial_rotation && *share != 1.0)
        reader["partial_rotary_factor"].refuse("1 (rotation of whole heads)");
    if (!(*share > 0.0 && *share <= 1.0)) reader["partial_rotary_factor"].refuse("more than 0, at most 1");
    rope.rotated_share = *share;
}

std::vector<double> read_factors(const JsonReader& rope, const char* key, int64_t count) {
    const OrderedJson& values = rope[key].value();
    if (!values.is_array() || static_cast<int64_t>(values.size()) != count)
        rope[key].refuse(cat("a list of ", count, " numbers, one for each pair of a head's values"));
    std::vector<double> factors;
    for (const auto& value : values) {
        if (!value.is_number() || !(value.get<double>() > 0)) rope[key].refuse("numbers above 0");
        factors.push_back(value.get<double>());
    }
    return factors;
}

/// M-RoPE's sections, one number of frequencies for each axis.
void read_sections(const JsonReader& rope, const spec::ModelSpec& spec, spec::RopeSpec& out) {
    const Family::Axes axes = family_of(spec).axes;
    out.interleaved = axes == Family::Axes::interleaved;
    if (rope.boolean("mrope_interleaved").value_or(out.interleaved) != out.interleaved)
        rope["mrope_interleaved"].refuse(out.interleaved ? "true" : "false");
    const std::vector<int64_t> sections = rope.integers("mrope_section");
    const int64_t pairs = spec.rotary_dim(out) / 2;
    bool fits = sections.size() == 3;
    int64_t sum = 0;
    for (const int64_t section : sections) sum += section, fits = fits && section > 0 && section <= pairs;
    if (!fits || sum != pairs) rope["mrope_section"].refuse(cat("three numbers above 0 that are ", pairs, " together"));
    std::ranges::copy(sections, out.sections.begin());
}

}  // namespace

void read_rope_options(const JsonReader& rope, const spec::ModelSpec& spec, spec::RopeSpec& out,
                       std::optional<int64_t> original_length) {
    using Type = spec::RopeSpec::Type;
    const Family& family = family_of(spec);
    out.type = rope_type(rope, family);
    read_rotated_share(rope, family, out);
    if (family.query_beta) out.query_beta = rope.number("llama_4_scaling_beta").value_or(out.query_beta);
    if (const auto theta = rope.number("rope_theta")) out.theta = *theta;
    if (family.axes != Family::Axes::none && !out.by_axes() && (family.axes_required || rope.has("mrope_section")))
        read_sections(rope, spec, out);
    if (out.by_axes() && out.by_length())
        rope["rope_type"].refuse("a type that does not depend on the length, together with mrope_section");
    if (out.type == Type::standard) return;
    out.original_max_position_embeddings = rope.integer(original_length_key).value_or(0);
    const bool by_ratio = out.type == Type::yarn || out.type == Type::longrope;
    if (original_length && (by_ratio || out.type == Type::llama3))
        out.original_max_position_embeddings = *original_length;
    if (by_ratio && !rope.has("factor") && out.original_max_position_embeddings > 0) {
        out.factor = static_cast<double>(spec.max_position_embeddings) /
                     static_cast<double>(out.original_max_position_embeddings);
    } else {
        out.factor = rope["factor"].number();
    }
    if (out.type == spec::RopeSpec::Type::llama3) {
        out.low_freq_factor = rope["low_freq_factor"].number();
        out.high_freq_factor = rope["high_freq_factor"].number();
    } else if (out.type == spec::RopeSpec::Type::yarn) {
        out.attention_factor = rope.number("attention_factor");
        out.mscale = rope.number("mscale");
        out.mscale_all_dim = rope.number("mscale_all_dim");
        out.beta_fast = rope.number("beta_fast").value_or(32.0);
        out.beta_slow = rope.number("beta_slow").value_or(1.0);
        out.truncate = rope.boolean("truncate").value_or(true);
    } else if (out.type == spec::RopeSpec::Type::longrope) {
        out.attention_factor = rope.number("attention_factor");
        out.short_factor = read_factors(rope, "short_factor", spec.rotary_dim(out) / 2);
        out.long_factor = read_factors(rope, "long_factor", spec.rotary_dim(out) / 2);
    }
}

/// transformers 5 holds all in rope_parameters; 4.x has rope_theta and rope_scaling. Where a file has both forms,
/// rope_scaling wins unless it is empty, and of the other form nothing is read, as in transformers 5.
void read_rope(const JsonReader& config, spec::ModelSpec& spec) {
    const Family& family = family_of(spec);
    read_rotated_share(config, family, spec.ropes.front());
    spec.ropes.front().theta = config.number("rope_theta").value_or(10000.0);
    if (family.ropes_by_layer_type) {
        spec.ropes.emplace_back();
        spec.ropes.back().theta = config.number("rope_local_base_freq").value_or(spec.ropes.front().theta);
    }
    for (const char* const key : {"rope_scaling", "rope_parameters"}) {
        const auto rope = config.object(key);
        if (!rope || rope->value().empty()) continue;
        if (family.ropes_by_layer_type && rope->has("full_attention")) {
            read_rope_options((*rope)["full_attention"], spec, spec.ropes.front());
            read_rope_options((*rope)["sliding_attention"], spec, spec.ropes.back());
            return;
        }
        for (const auto& item : rope->value().items())
            if (item.value().is_object())
                (*rope)[item.key()].refuse("a number (parameters per layer type are not supported)");
        read_rope_options(*rope, spec, spec.ropes.front(), config.integer(original_length_key));
        return;
    }
    if (family.axes != Family::Axes::none && family.axes_required)
        config["rope_scaling"].refuse("an object with mrope_section");
}

}  // namespace unsloth::formats
