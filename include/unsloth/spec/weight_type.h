// How a model folder's weights may be stored.
#pragma once

#include <cstdint>

namespace unsloth::spec {

/// `automatic`: the model's own 16- or 32-bit type, as its config.json names it. With nf4 and fp4 the linears of
/// the layers are quantised as bitsandbytes does (double quantisation), with int8 as its LLM.int8 does; all else keeps
/// the model's own type. mxfp4: of experts that a folder has so; nothing is quantised to it.
enum class WeightType : uint8_t { automatic, f32, bf16, f16, nf4, fp4, mxfp4, int8 };

constexpr bool is_4bit(WeightType type) {
    return type == WeightType::nf4 || type == WeightType::fp4 || type == WeightType::mxfp4;
}
constexpr bool is_quantised(WeightType type) {
    return is_4bit(type) || type == WeightType::int8;
}

constexpr const char* name_of(WeightType type) {
    switch (type) {
        case WeightType::automatic:
            return "auto";
        case WeightType::f32:
            return "fp32";
        case WeightType::bf16:
            return "bf16";
        case WeightType::f16:
            return "fp16";
        case WeightType::nf4:
            return "nf4";
        case WeightType::fp4:
            return "fp4";
        case WeightType::mxfp4:
            return "mxfp4";
        case WeightType::int8:
            return "int8";
    }
    return "?";
}

}  // namespace unsloth::spec
