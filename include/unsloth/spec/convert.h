// Host conversions between the floating types of a file and fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unsloth/spec/dtype.h"

namespace unsloth::spec {

/// Widens (f16, bf16, f32 exactly) or rounds (f64) `n` elements at `in`, which need not be aligned, to `out`.
/// CheckError for a type that is not floating.
void convert_to_f32(DType type, const std::byte* in, int64_t n, float* out);

/// Rounds `n` fp32 values to `type` (f32, bf16 or f16; nearest, ties to even) into `out`, which need not be aligned.
void convert_from_f32(DType type, const float* in, int64_t n, std::byte* out);

/// The bits of the smallest positive fp32 value that rounds to an infinity of this type: of f16 those of 65520, of bf16
/// of 3.396e38, of others infinity's. Bits of positive floats are ordered as the floats are, with NaNs above infinity.
uint32_t first_infinite(DType type);

}  // namespace unsloth::spec
