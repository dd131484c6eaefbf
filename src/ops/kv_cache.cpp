#include "unsloth/ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"
#ifdef UNSLOTH_CUDA
#include "kernels/kv_cache.h"
#include "kernels/paged_attention.h"
#endif

namespace unsloth::ops {
namespace {

using Code = c10::Float8_e4m3fn;
constexpr int exponent_bias = 127, not_finite = 255;

/// Exponent bits of the least power of two that brings `amax` to 448 = 0.875 * 2^9 at most.
int exponent_bits(float amax) {
    if (!std::isfinite(amax)) return not_finite;
    int exponent = 0;
    const float mantissa = std::frexp(amax, &exponent);
    return std::max(exponent - (mantissa <= 0.875F ? 9 : 8) + exponent_bias, 1);
}
float power_of_two(int bits) {
    return bits == not_finite ? std::numeric_limits<float>::infinity() : std::ldexp(1.0F, bits - exponent_bias);
}

/// The exponents of a place, [2 K].
at::Tensor exponents_at(const KvCache& cache, int64_t place) {
    return cache.exponents_PHS.select(0, place / page_tokens).select(1, place % page_tokens);
}

void store_codes_cpu(const at::Tensor& kv_T2N, const at::Tensor& slots_T, int64_t head_dim, const KvCache& cache) {
    const at::Tensor rounded = kv_T2N.to(at::kFloat).contiguous();
    const int64_t columns = rounded.size(1);
    for (int64_t t = 0; t < rounded.size(0); ++t) {
        const int64_t place = slots_T.const_data_ptr<int32_t>()[t];
        float* const row = rounded.mutable_data_ptr<float>() + t * columns;
        auto* const codes = cache.kv_C2N.select(0, place).mutable_data_ptr<uint8_t>();
        const at::Tensor exponents = exponents_at(cache, place);
        for (int64_t h = 0; h < columns / head_dim; ++h) {
            float amax = 0;
            for (float* x = row + h * head_dim; x < row + (h + 1) * head_dim; ++x)
                amax = std::isnan(*x) ? std::numeric_limits<float>::infinity() : std::max(amax, std::abs(*x));
            const int bits = exponent_bits(amax);
            exponents.mutable_data_ptr<uint8_t>()[h * exponents.stride(0)] = static_cast<uint8_t>(bits);
            for (int64_t c = h * head_dim; c < (h + 1) * head_dim; ++c) {
                const Code code(row[c] / power_of_two(bits));
                codes[c] = code.x;
                row[c] = static_cast<float>(code) * power_of_two(bits);
            }
        }
    }
    kv_T2N.copy_(rounded);
}

/// The columns of a part of the cache.
at::Tensor columns_of(const KvCache& cache, KeyPart part) {
    const int64_t n = cache.kv_C2N.size(1) / 2;
    return cache.kv_C2N.narrow(1, part == KeyPart::keys ? 0 : n, n);
}

at::Tensor read_codes_cpu(const KvCache& cache, KeyPart part, const at::Tensor& places, int64_t first, int64_t length,
                          int64_t head_dim) {
    const at::Tensor codes_CN = columns_of(cache, part);
    const int64_t heads = codes_CN.size(1) / head_dim, first_head = part == KeyPart::keys ? 0 : heads;
    at::Tensor out = at::empty({length, heads, head_dim}, at::kFloat);
    float* to = out.mutable_data_ptr<float>();
    for (int64_t key = 0; key < length; ++key) {
        const int64_t place = places.defined() ? places.const_data_ptr<int32_t>()[key] : first + key;
        const auto* code = codes_CN.select(0, place).const_data_ptr<uint8_t>();
        const at::Tensor exponents = exponents_at(cache, place);
        for (int64_t h = 0; h < heads; ++h) {
            const float scale =
                power_of_two(exponents.const_data_ptr<uint8_t>()[(first_head + h) * exponents.stride(0)]);
            for (int64_t c = 0; c < head_dim; ++c, ++code, ++to)
                *to = static_cast<float>(Code(*code, Code::from_bits())) * scale;
        }
    }
    return out;
}

#ifdef UNSLOTH_CUDA
kernels::KeyCodes codes_of(const KvCache& cache, int64_t head_dim) {
    return {cache.kv_C2N.mutable_data_ptr<uint8_t>(), cache.kv_C2N.stride(0),
            cache.exponents_PHS.mutable_data_ptr<uint8_t>(), static_cast<int>(cache.exponents_PHS.size(1)),
            static_cast<int>(head_dim)};
}
#endif

void check_codes(const KvCache& cache, int64_t head_dim) {
    const at::Tensor& codes = cache.kv_C2N;
    UNSLOTH_CHECK(
        codes.scalar_type() == at::kByte && codes.stride(1) == 1 && cache.exponents_PHS.is_contiguous() &&
            cache.exponents_PHS.size(0) * page_tokens == codes.size(0) &&
            cache.exponents_PHS.size(1) * head_dim == codes.size(1) && cache.exponents_PHS.size(2) == page_tokens,
        "8-bit keys: ", codes.sizes(), " codes, ", cache.exponents_PHS.sizes(), " exponents, heads of ", head_dim);
}

}  // namespace

bool codes_keys(at::Device device, at::ScalarType dtype, int64_t heads, int64_t kv_heads, int64_t head_dim) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return kernels::paged_attention_reads_codes(dtype_of(dtype), heads, kv_heads, head_dim);
#endif
    (void)device, (void)dtype, (void)heads, (void)kv_heads, (void)head_dim;
    return true;
}

void write_kv(Context& ctx, const at::Tensor& kv_T2N, const at::Tensor& slots_T, int64_t head_dim,
              const KvCache& cache) {
    if (!cache.coded()) return scatter_rows(ctx, kv_T2N, slots_T, cache.kv_C2N);
    const Region region(ctx, "write_kv");
    check_codes(cache, head_dim);
    UNSLOTH_CHECK(kv_T2N.size(1) == cache.kv_C2N.size(1) && slots_T.numel() == kv_T2N.size(0),
                  "8-bit keys: ", kv_T2N.sizes(), " for rows of ", cache.kv_C2N.size(1), " and ", slots_T.numel(),
                  " slots");
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda())
        return kernels::write_kv({kv_T2N.mutable_data_ptr(), kv_T2N.stride(0)}, slots_T.const_data_ptr<int32_t>(),
                                 kv_T2N.size(0), codes_of(cache, head_dim), static_cast<cudaStream_t>(ctx.stream()));
#endif
    store_codes_cpu(kv_T2N, slots_T, head_dim, cache);
}

at::Tensor read_keys(Context& ctx, const KvCache& cache, KeyPart part, const at::Tensor& places, int64_t first,
                     int64_t length, int64_t head_dim, at::ScalarType dtype) {
    const at::Tensor all_CN = columns_of(cache, part);
    const std::vector<int64_t> shape{length, all_CN.size(1) / head_dim, head_dim};
    if (!cache.coded()) {
        if (!places.defined()) return all_CN.narrow(0, first, length).view(shape);
        const at::Tensor keys = at::empty({length, all_CN.size(1)}, all_CN.options());
        gather_rows(ctx, all_CN, places, keys);
        return keys.view(shape);
    }
    check_codes(cache, head_dim);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) {
        const at::Tensor out = at::empty(shape, all_CN.options().dtype(dtype));
        const int heads = static_cast<int>(shape[1]);
        kernels::read_keys(codes_of(cache, head_dim),
                           {.places = places.defined() ? places.const_data_ptr<int32_t>() : nullptr,
                            .first = first,
                            .length = length,
                            .first_head = part == KeyPart::keys ? 0 : heads,
                            .heads = heads,
                            .out = out.mutable_data_ptr()},
                           static_cast<cudaStream_t>(ctx.stream()));
        return out;
    }
#endif
    return read_codes_cpu(cache, part, places, first, length, head_dim).to(dtype);
}

}  // namespace unsloth::ops
