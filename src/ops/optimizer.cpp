#include "unsloth/ops/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "kernels/dynamic_codes.h"
#ifdef UNSLOTH_CUDA
#include "kernels/optimizer.h"
#endif
#include "unsloth/core/error.h"
#include "unsloth/spec/dynamic_map.h"

#if defined(__GNUC__) && !defined(__clang__) && !defined(__NO_MATH_ERRNO__)
#error "this file is compiled with -fno-math-errno: no loop with sqrtf becomes vector instructions without"
#endif

namespace unsloth::ops {
namespace {

namespace adamw = kernels::adamw;

void check_array(const Context& ctx, const at::Tensor& tensor, const char* name, at::ScalarType type, int64_t count) {
    UNSLOTH_CHECK(tensor.defined() && tensor.device() == ctx.device() && tensor.is_contiguous(), name,
                  " must be a contiguous tensor on ", ctx.device());
    UNSLOTH_CHECK(tensor.scalar_type() == type && tensor.numel() == count, name, " is ", tensor.numel(), " x ",
                  c10::toString(tensor.scalar_type()), ", expected ", count, " x ", c10::toString(type));
}

void check_step_state(const Context& ctx) {
    UNSLOTH_CHECK(ctx.scalars != nullptr && ctx.outcome != nullptr, "the context has no step scalars or no outcome");
}

void check_state(const Context& ctx, const AdamwState& state) {
    check_step_state(ctx);
    const int64_t elements = state.params_P.numel();
    const int64_t blocks = elements / optimizer_block;
    UNSLOTH_CHECK(elements % optimizer_block == 0, elements, " parameters are no multiple of ", optimizer_block);
    check_array(ctx, state.params_P, "params_P", at::kFloat, elements);
    check_array(ctx, state.grads_P, "grads_P", at::kFloat, elements);
    check_array(ctx, state.flags_b, "flags_b", at::kByte, blocks);
    check_array(ctx, state.slot_b, "slot_b", at::kInt, blocks);
    check_array(ctx, state.maps, "maps", at::kFloat, 512);
    const int64_t slots32 = state.m32.defined() ? state.m32.numel() / optimizer_block : 0;
    const int64_t slots8 = state.m8.defined() ? state.m8.numel() / optimizer_block : 0;
    UNSLOTH_CHECK(slots32 + slots8 >= blocks, blocks, " blocks, but ", slots32, " + ", slots8, " slots of moments");
    if (slots32 > 0) {
        check_array(ctx, state.m32, "m32", at::kFloat, slots32 * optimizer_block);
        check_array(ctx, state.v32, "v32", at::kFloat, slots32 * optimizer_block);
    }
    if (slots8 > 0) {
        check_array(ctx, state.m8, "m8", at::kByte, slots8 * optimizer_block);
        check_array(ctx, state.v8, "v8", at::kByte, slots8 * optimizer_block);
        check_array(ctx, state.absmax_m8, "absmax_m8", at::kFloat, slots8);
        check_array(ctx, state.absmax_v8, "absmax_v8", at::kFloat, slots8);
    }
}

adamw::Constants constants_of(const AdamwSettings& settings) {
    const auto rate = [&](std::size_t group) { return static_cast<float>(settings.rate_factors[group]); };
    return {.beta1 = static_cast<float>(settings.beta1),
            .beta2 = static_cast<float>(settings.beta2),
            .eps = static_cast<float>(settings.eps),
            .weight_decay = static_cast<float>(settings.weight_decay),
            .rest1_from_f64 = static_cast<float>(1.0 - settings.beta1),
            .rest2_from_f64 = static_cast<float>(1.0 - settings.beta2),
            .rate_factors = {rate(0), rate(1), rate(2), rate(3)}};
}

/// Tables of the codes of both maps (kernels/dynamic_codes.h).
struct Codes {
    std::array<uint32_t, adamw::SignedCodes::buckets> m{};
    std::array<uint32_t, adamw::UnsignedCodes::buckets> v{};
    explicit Codes(const float* maps) {
        fill<adamw::SignedCodes>(m, maps);
        fill<adamw::UnsignedCodes>(v, maps + 256);
    }

  private:
    template <class Table, std::size_t kBuckets>
    static void fill(std::array<uint32_t, kBuckets>& entries, const float* map) {
        std::array<uint32_t, Table::thresholds> sorted{};
        for (int k = 0; k < Table::thresholds; ++k)
            sorted[static_cast<std::size_t>(k)] = adamw::bits_of_float(Table::threshold(map, k));
        for (int bucket = 0; bucket < Table::buckets; ++bucket)
            entries[static_cast<std::size_t>(bucket)] = Table::entry(sorted.data(), bucket);
    }
};

#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// With the widest vectors that the machine has. Each operation is rounded on its own in all of them: the same bits.
#define UNSLOTH_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define UNSLOTH_WIDEST
#endif

/// One block of 256: the arrays begin at the block's parameters, gradients and moments.
UNSLOTH_WIDEST void step_block_32bit(adamw::Constants constants, adamw::Factors factors, bool decays,
                                     const float* __restrict g, float* __restrict p, float* __restrict m,
                                     float* __restrict v) {
    if (decays)
        for (int64_t i = 0; i < optimizer_block; ++i)
            adamw::element_32bit(constants, factors, true, g[i], p[i], m[i], v[i]);
    else
        for (int64_t i = 0; i < optimizer_block; ++i)
            adamw::element_32bit(constants, factors, false, g[i], p[i], m[i], v[i]);
}

/// One block of 256 likewise; `absmax_m` and `absmax_v` are the block's.
UNSLOTH_WIDEST void step_block_8bit(adamw::Constants constants, adamw::Factors factors, const float* __restrict maps,
                                    const Codes& codes, bool decays, const float* __restrict g, float* __restrict p,
                                    uint8_t* __restrict codes_m, uint8_t* __restrict codes_v, float& absmax_m,
                                    float& absmax_v) {
    alignas(64) float m[optimizer_block], v[optimizer_block], floors[optimizer_block];
    const float old_m = absmax_m, old_v = absmax_v;
    for (int64_t i = 0; i < optimizer_block; ++i) {
        m[i] = maps[codes_m[i]] * old_m;
        v[i] = maps[256 + codes_v[i]] * old_v;
        floors[i] = adamw::v_floor_8bit(constants, codes_m[i], codes_v[i], maps[257], old_v);
    }
    for (int64_t i = 0; i < optimizer_block; ++i) {
        float value = p[i], new_m = m[i], new_v = v[i];
        adamw::element_8bit(constants, factors, decays, g[i], floors[i], value, new_m, new_v);
        p[i] = value;
        m[i] = new_m;
        v[i] = new_v;
    }
    uint32_t largest_m = 0, largest_v = 0;  // bits of numbers that are not negative are in their order
    for (int64_t i = 0; i < optimizer_block; ++i) {
        largest_m = std::max(largest_m, adamw::bits_of_float(std::fabs(m[i])));
        largest_v = std::max(largest_v, adamw::bits_of_float(v[i]));
    }
    absmax_m = adamw::float_of_bits(largest_m);
    absmax_v = adamw::float_of_bits(largest_v);
    const float over_m = largest_m > 0 ? absmax_m : 1.0F, over_v = largest_v > 0 ? absmax_v : 1.0F;
    for (int64_t i = 0; i < optimizer_block; ++i) {
        codes_m[i] = static_cast<uint8_t>(adamw::signed_code(codes.m.data(), m[i], std::fabs(m[i]) / over_m));
        codes_v[i] = static_cast<uint8_t>(adamw::UnsignedCodes::code(codes.v.data(), v[i] / over_v));
    }
}

template <class T>
T* data_or_null(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

void adamw_on_cpu(Context& ctx, const AdamwState& state, const AdamwSettings& settings) {
    if (ctx.outcome->skipped != 0) return;
    const adamw::Constants constants = constants_of(settings);
    std::array<adamw::Factors, rate_groups> factors_of{};
    for (int group = 0; group < rate_groups; ++group)
        factors_of[static_cast<std::size_t>(group)] =
            adamw::make_factors(constants, *ctx.scalars, ctx.outcome->clip, group);
    const float* maps = state.maps.data_ptr<float>();
    std::optional<Codes> codes;  // blocks with moments in 8 bit have them
    if (state.m8.defined()) codes.emplace(maps);
    const uint8_t* flags = state.flags_b.data_ptr<uint8_t>();
    const int32_t* slots = state.slot_b.data_ptr<int32_t>();
    float *m32 = data_or_null<float>(state.m32), *v32 = data_or_null<float>(state.v32);
    uint8_t *m8 = data_or_null<uint8_t>(state.m8), *v8 = data_or_null<uint8_t>(state.v8);
    float *absmax_m8 = data_or_null<float>(state.absmax_m8), *absmax_v8 = data_or_null<float>(state.absmax_v8);
    at::parallel_for(0, state.flags_b.numel(), 16, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
            const float* g = state.grads_P.data_ptr<float>() + block * optimizer_block;
            float* p = state.params_P.data_ptr<float>() + block * optimizer_block;
            const bool decays = (flags[block] & block_decays) != 0;
            const adamw::Factors& factors = factors_of[static_cast<std::size_t>(flags[block] >> block_rate_shift)];
            const int64_t slot = slots[block], place = slot * optimizer_block;
            if ((flags[block] & block_8bit) != 0) {
                step_block_8bit(constants, factors, maps, *codes, decays, g, p, m8 + place, v8 + place, absmax_m8[slot],
                                absmax_v8[slot]);
            } else {
                step_block_32bit(constants, factors, decays, g, p, m32 + place, v32 + place);
            }
        }
    });
}

void gradient_squares_on_cpu(const at::Tensor& grads_P, double* partials) {
    const float* grads = grads_P.data_ptr<float>();
    const int64_t elements = grads_P.numel();
    const int64_t chunks = (elements + gradient_norm_chunk - 1) / gradient_norm_chunk;
    at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
            const int64_t first = chunk * gradient_norm_chunk;
            const int64_t last = std::min(elements, first + gradient_norm_chunk);
            double sum = 0;
            for (int64_t i = first; i < last; ++i) sum += static_cast<double>(grads[i]) * static_cast<double>(grads[i]);
            partials[chunk] = sum;
        }
    });
}

#ifdef UNSLOTH_CUDA
static_assert(gradient_norm_chunk == kernels::norm_chunk, "sums are in the same order");
static_assert(block_decays == 1 && block_8bit == 2 && block_rate_shift == 2,
              "kernels/optimizer.cu spells the flags as numbers");

void adamw_on_cuda(Context& ctx, const AdamwState& state, const AdamwSettings& settings, bool zero_gradients) {
    kernels::adamw_step({.blocks = state.flags_b.numel(),
                         .params = state.params_P.data_ptr<float>(),
                         .grads = state.grads_P.data_ptr<float>(),
                         .flags = state.flags_b.data_ptr<uint8_t>(),
                         .slots = state.slot_b.data_ptr<int32_t>(),
                         .m32 = data_or_null<float>(state.m32),
                         .v32 = data_or_null<float>(state.v32),
                         .m8 = data_or_null<uint8_t>(state.m8),
                         .v8 = data_or_null<uint8_t>(state.v8),
                         .absmax_m8 = data_or_null<float>(state.absmax_m8),
                         .absmax_v8 = data_or_null<float>(state.absmax_v8),
                         .maps = state.maps.data_ptr<float>(),
                         .constants = constants_of(settings),
                         .scalars = ctx.scalars,
                         .outcome = ctx.outcome,
                         .zero_gradients = zero_gradients,
                         .one_rate = std::all_of(settings.rate_factors.begin(), settings.rate_factors.end(),
                                                 [](double factor) { return factor == 1.0; })},
                        static_cast<cudaStream_t>(ctx.stream()));
}
#endif

bool aligned(const at::Tensor& tensor, std::uintptr_t bytes) {
    return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % bytes == 0;
}

}  // namespace

std::vector<float> dynamic_map(bool is_signed) {
    const std::array<float, 256>& map = spec::dynamic_map_256(is_signed);
    return {map.begin(), map.end()};
}

at::Tensor dynamic_maps(at::Device device) {
    at::Tensor maps = at::empty({512}, at::kFloat);
    const std::array<float, 256>&signed_map = spec::dynamic_map_256(true), &unsigned_map = spec::dynamic_map_256(false);
    std::copy(signed_map.begin(), signed_map.end(), maps.data_ptr<float>());
    std::copy(unsigned_map.begin(), unsigned_map.end(), maps.data_ptr<float>() + 256);
    return maps.to(device);
}

float bias_correction(double beta, uint32_t step) {
    return static_cast<float>(-std::expm1(static_cast<double>(step) * std::log(beta)));
}

int64_t gradient_norm_scratch(int64_t elements) {
    return (elements + gradient_norm_chunk - 1) / gradient_norm_chunk * static_cast<int64_t>(sizeof(double));
}

void gradient_squares(Context& ctx, const at::Tensor& grads_P, const at::Tensor& partials) {
    const int64_t chunks = (grads_P.numel() + gradient_norm_chunk - 1) / gradient_norm_chunk;
    check_array(ctx, grads_P, "grads_P", at::kFloat, grads_P.numel());
    check_array(ctx, partials, "partials", at::kDouble, chunks);
    UNSLOTH_CHECK(grads_P.numel() % 4 == 0 && aligned(grads_P, 16),
                  "grads_P must have a multiple of 4 elements, aligned to 16");
    if (chunks == 0) return;
    if (!ctx.is_cuda()) return gradient_squares_on_cpu(grads_P, partials.data_ptr<double>());
#ifdef UNSLOTH_CUDA
    kernels::gradient_squares({.grads = grads_P.const_data_ptr<float>(),
                               .elements = grads_P.numel(),
                               .partials = partials.data_ptr<double>()},
                              static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void finish_gradient_norm(Context& ctx, const at::Tensor& partials) {
    check_step_state(ctx);
    check_array(ctx, partials, "partials", at::kDouble, partials.numel());
    if (!ctx.is_cuda()) {
        double total = 0;
        const double* const sums = partials.const_data_ptr<double>();
        for (int64_t chunk = 0; chunk < partials.numel(); ++chunk) total += sums[chunk];
        return adamw::finish_gradient_norm(total, *ctx.scalars, *ctx.outcome);
    }
#ifdef UNSLOTH_CUDA
    kernels::finish_gradient_norm({.partials = partials.data_ptr<double>(),
                                   .chunks = partials.numel(),
                                   .scalars = ctx.scalars,
                                   .outcome = ctx.outcome},
                                  static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void gradient_norm(Context& ctx, const at::Tensor& grads_P, const at::Tensor& scratch) {
    const int64_t needed = gradient_norm_scratch(grads_P.numel());
    UNSLOTH_CHECK(needed == 0 || (scratch.defined() && scratch.device() == ctx.device() && scratch.is_contiguous() &&
                                  aligned(scratch, sizeof(double)) && static_cast<int64_t>(scratch.nbytes()) >= needed),
                  "scratch must have ", needed, " bytes on ", ctx.device());
    const int64_t chunks = needed / static_cast<int64_t>(sizeof(double));
    const at::TensorOptions fp64 = at::TensorOptions(at::kDouble).device(ctx.device());
    const at::Tensor partials = chunks == 0 ? at::empty({0}, fp64) : at::from_blob(scratch.data_ptr(), {chunks}, fp64);
    gradient_squares(ctx, grads_P, partials);
    finish_gradient_norm(ctx, partials);
}

void adamw_step(Context& ctx, const AdamwState& state, const AdamwSettings& settings, bool zero_gradients) {
    check_state(ctx, state);
    if (!ctx.is_cuda()) {
        adamw_on_cpu(ctx, state, settings);
        if (zero_gradients) state.grads_P.zero_();
        return;
    }
#ifdef UNSLOTH_CUDA
    UNSLOTH_CHECK(aligned(state.params_P, 16) && aligned(state.grads_P, 16),
                  "flat buffers must be aligned to 16 bytes");
    adamw_on_cuda(ctx, state, settings, zero_gradients);
#endif
}

}  // namespace unsloth::ops
