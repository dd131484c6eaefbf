#include "unsloth/spec/convert.h"

#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/half.h"

namespace unsloth::spec {
namespace {

template <class T>
T load(const std::byte* from, int64_t i) {
    T value;
    std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
}

template <class T>
void store(std::byte* to, int64_t i, T value) {
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
}

}  // namespace

void convert_to_f32(DType type, const std::byte* in, int64_t n, float* out) {
    if (n == 0) return;
    switch (type) {
        case DType::f32:
            std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(float));
            return;
        case DType::bf16:
            for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(load<uint16_t>(in, i));
            return;
        case DType::f16:
            for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(load<uint16_t>(in, i));
            return;
        case DType::f64:
            for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(load<double>(in, i));
            return;
        default:
            UNSLOTH_CHECK(false, "no floating type: ", name_of(type));
    }
}

void convert_from_f32(DType type, const float* in, int64_t n, std::byte* out) {
    if (n == 0) return;
    switch (type) {
        case DType::f32:
            std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(float));
            return;
        case DType::bf16:
            for (int64_t i = 0; i < n; ++i) store(out, i, f32_to_bf16(in[i]));
            return;
        case DType::f16:
            for (int64_t i = 0; i < n; ++i) store(out, i, f32_to_f16(in[i]));
            return;
        default:
            UNSLOTH_CHECK(false, "cannot round to ", name_of(type));
    }
}

uint32_t first_infinite(DType type) {
    switch (type) {
        case DType::f16:
            return bits_of_float(65520.0F);
        case DType::bf16:
            return 0x7F7F8000U;
        default:
            return 0x7F800000U;
    }
}

}  // namespace unsloth::spec
