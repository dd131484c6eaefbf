#include "unsloth/ops/dtype.h"

#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

constexpr std::pair<spec::DType, at::ScalarType> types[] = {
    {spec::DType::f32, at::kFloat},
    {spec::DType::bf16, at::kBFloat16},
    {spec::DType::f16, at::kHalf},
    {spec::DType::f64, at::kDouble},
    {spec::DType::i64, at::kLong},
    {spec::DType::i32, at::kInt},
    {spec::DType::i16, at::kShort},
    {spec::DType::i8, at::kChar},
    {spec::DType::u8, at::kByte},
    {spec::DType::boolean, at::kBool},
    {spec::DType::f8_e4m3, at::kFloat8_e4m3fn},
    {spec::DType::f8_e5m2, at::kFloat8_e5m2},
};

}  // namespace

at::ScalarType scalar_type(spec::DType type) {
    for (const auto& [ours, torchs] : types)
        if (ours == type) return torchs;
    throw CheckError(cat("LibTorch has no ", spec::name_of(type)));
}

spec::DType dtype_of(at::ScalarType type) {
    for (const auto& [ours, torchs] : types)
        if (torchs == type) return ours;
    throw CheckError(cat("no dtype of ours is LibTorch's ", c10::toString(type)));
}

}  // namespace unsloth::ops
