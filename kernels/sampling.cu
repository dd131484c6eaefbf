// Sampling with thresholds found by counting: a row's order (likelier first, then lower ids) is never sorted. The
// lowest value that top_k or top_p leave is found three bits at a time, from how many values (or how much probability,
// in whole numbers, so that the order of additions does not matter) are at or above seven bounds; ids decide among
// equals the same way. The token is the one whose exponential wait ends first; waits are compared in fp64 where fp32
// cannot tell them apart.
//
// Ceiling: a row's logits, read from the L2 repeatedly: two times for greedy sampling, four for a draw from
// all, and some twelve for each of top_k and top_p, by one SM.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/sampling.h"
#include "unsloth/core/philox.h"

namespace unsloth::kernels {
namespace {

constexpr int threads = 1024, warps = threads / warp_size;
constexpr int bounds = 7;  // of a search's step: three bits

/// Ascending as the floats are.
__device__ __forceinline__ uint32_t ordered(float v) {
    const uint32_t bits = __float_as_uint(v == 0.0F ? 0.0F : v);  // -0 is 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

struct Best {
    double score;
    int id;
};
__device__ __forceinline__ bool better(const Best& a, const Best& b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

struct Shared {
    float floats[warps];
    double doubles[warps];
    Best bests[warps];
    unsigned long long totals[bounds];
    float raw;
};

/// Which tokens are left: those above the key, and equals up to an id.
struct Left {
    uint32_t key = 0;
    int last_id = INT32_MAX;
    float least = -INFINITY, highest = INFINITY;  // min_p's, which never drops the most likely token
    __device__ __forceinline__ bool ordered_in(uint32_t k, int id) const {
        return k > key || (k == key && id <= last_id);
    }
};

template <class T>
struct Row {
    const Sampling& a;
    const SampledRow& how;
    T* const logits;
    Shared& s;

    __device__ __forceinline__ float block_max(float v) const {
        v = group_max(v);
        __syncthreads();
        if (threadIdx.x % warp_size == 0) s.floats[threadIdx.x / warp_size] = v;
        __syncthreads();
        return group_max(s.floats[threadIdx.x % warp_size]);
    }
    __device__ __forceinline__ double block_total(double v) const {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(all_lanes, v, offset);
        __syncthreads();
        if (threadIdx.x % warp_size == 0) s.doubles[threadIdx.x / warp_size] = v;
        __syncthreads();
        v = s.doubles[threadIdx.x % warp_size];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(all_lanes, v, offset);
        return v;
    }
    __device__ __forceinline__ Best block_best(Best v) const {
        const auto over_warp = [](Best best) {
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) {
                const Best other{__shfl_xor_sync(all_lanes, best.score, offset),
                                 __shfl_xor_sync(all_lanes, best.id, offset)};
                if (better(other, best)) best = other;
            }
            return best;
        };
        v = over_warp(v);
        __syncthreads();
        if (threadIdx.x % warp_size == 0) s.bests[threadIdx.x / warp_size] = v;
        __syncthreads();
        return over_warp(s.bests[threadIdx.x % warp_size]);
    }

    /// f(id, logit) for each token with one above -inf: penalties and biases included once adjust() was called.
    template <class F>
    __device__ __forceinline__ void visit(F f) const {
        constexpr int width = 4;
        const bool packs = reinterpret_cast<std::uintptr_t>(logits) % (width * sizeof(T)) == 0;
        for (int first = static_cast<int>(threadIdx.x) * width; first < a.vocabulary; first += threads * width) {
            const int count = min(width, a.vocabulary - first);
            Pack<T, width> pack;
            if (packs && count == width) {
                pack = load_pack<width>(logits + first);
            } else {
#pragma unroll
                for (int i = 0; i < width; ++i) pack.v[i] = i < count ? logits[first + i] : from_float<T>(-INFINITY);
            }
#pragma unroll
            for (int i = 0; i < width; ++i) {
                const float v = to_float(pack.v[i]);
                if (v != -INFINITY) f(first + i, v);
            }
        }
    }
    __device__ __forceinline__ bool allows(int id) const {
        return how.allowed_begin < 0 || (a.allowed[how.allowed_begin + id / 32] >> id % 32 & 1U) != 0;
    }
    template <class F>
    __device__ __forceinline__ void visit_adjusted(F f) const {
        visit([&](int id, float v) {
            if (allows(id)) f(id, v);
        });
        for (int i = how.adjusted_begin + static_cast<int>(threadIdx.x); i < how.adjusted_end; i += threads)
            if (a.adjusted[i].value != -INFINITY && allows(a.adjusted[i].id)) f(a.adjusted[i].id, a.adjusted[i].value);
    }

    __device__ __forceinline__ void adjust() const {
        for (int i = how.adjusted_begin + static_cast<int>(threadIdx.x); i < how.adjusted_end; i += threads) {
            AdjustedToken& token = a.adjusted[i];
            float v = token.raw = to_float(logits[token.id]);
            if (token.repeated) v = v > 0 ? v / how.repetition_penalty : v * how.repetition_penalty;
            if (token.in_answer) v -= how.presence_penalty;
            if (token.biased) v += token.bias;
            token.value = v;
            logits[token.id] = from_float<T>(-INFINITY);
        }
        __syncthreads();
    }

    /// The largest number of `bits` bits whose weights' sum, of tokens at or above it, reaches `enough`; `weight(id,
    /// logit, number)` also says a token's number. The sum falls as the number grows, and suffices at 0.
    template <class Weigh, class Enough>
    __device__ __forceinline__ uint32_t search(int bits, Weigh weigh, Enough enough) const {
        uint32_t found = 0;
        for (int shift = (bits - 1) / 3 * 3; shift >= 0; shift -= 3) {
            unsigned long long sums[bounds] = {};
            visit_adjusted([&](int id, float v) {
                uint32_t number = 0;
                const unsigned long long weight = weigh(id, v, number);
#pragma unroll
                for (int j = 0; j < bounds; ++j)
                    if (number >= (found | static_cast<uint32_t>(j + 1) << shift)) sums[j] += weight;
            });
            __syncthreads();
            if (threadIdx.x < bounds) s.totals[threadIdx.x] = 0;
            __syncthreads();
#pragma unroll
            for (int j = 0; j < bounds; ++j) {
#pragma unroll
                for (int offset = 16; offset > 0; offset /= 2) sums[j] += __shfl_xor_sync(all_lanes, sums[j], offset);
                if (threadIdx.x % warp_size == 0) atomicAdd(&s.totals[j], sums[j]);
            }
            __syncthreads();
            uint32_t digit = 0;
            for (int j = 0; j < bounds; ++j)
                if ((uint64_t{found} | uint64_t(j + 1) << shift) >> bits == 0 && enough(s.totals[j])) digit = j + 1;
            found |= digit << shift;
        }
        return found;
    }

    __device__ __forceinline__ float scaled(float v) const { return v / how.temperature; }

    /// Of the tokens with this key, that are left before, the `wanted` with the lowest ids.
    __device__ __forceinline__ void keep_equals(Left& left, uint32_t key, unsigned long long wanted) const {
        const Left before = left;
        left.key = key;
        const uint32_t last = static_cast<uint32_t>(a.vocabulary - 1);
        // Numbers that fall with the id: the largest that `wanted` tokens reach is the last one's.
        const uint32_t number = search(
            32 - __clz(max(last, 1u)),
            [&](int id, float v, uint32_t& n) -> unsigned long long {
                n = last - static_cast<uint32_t>(id);
                const uint32_t k = ordered(scaled(v));
                return k == key && before.ordered_in(k, id) ? 1 : 0;
            },
            [&](unsigned long long total) { return total >= wanted; });
        left.last_id = static_cast<int>(last - number);
    }

    __device__ __forceinline__ void keep_top_k(Left& left) const {
        const auto k = static_cast<unsigned long long>(how.top_k);
        const auto key_of = [&](int, float v, uint32_t& n) -> unsigned long long {
            n = ordered(scaled(v));
            return 1;
        };
        const uint32_t key = search(32, key_of, [&](unsigned long long total) { return total >= k; });
        const double above = block_total(count([&](int, float v) { return ordered(scaled(v)) > key; }));
        keep_equals(left, key, k - static_cast<unsigned long long>(above));
    }

    template <class F>
    __device__ __forceinline__ double count(F f) const {
        int n = 0;
        visit_adjusted([&](int id, float v) { n += f(id, v) ? 1 : 0; });
        return n;
    }

    /// A token's probability divided by the most likely token's, in units of 2^-40.
    __device__ __forceinline__ unsigned long long share(float y, float highest) const {
        return static_cast<unsigned long long>(static_cast<double>(expf(y - highest)) * 0x1p40);
    }

    __device__ __forceinline__ void keep_top_p(Left& left, float highest) const {
        const Left before = left;
        const auto share_of = [&](int id, float v, uint32_t& n) -> unsigned long long {
            const float y = scaled(v);
            n = ordered(y);
            return before.ordered_in(n, id) ? share(y, highest) : 0;
        };
        const auto sum_where = [&](auto in) {  // whole numbers below 2^53: any order gives the same
            double sum = 0;
            visit_adjusted([&](int id, float v) {
                uint32_t n = 0;
                const unsigned long long w = share_of(id, v, n);
                if (in(n)) sum += static_cast<double>(w);
            });
            return block_total(sum);
        };
        const double wanted = how.top_p * sum_where([](uint32_t) { return true; });
        const uint32_t key =
            search(32, share_of, [&](unsigned long long total) { return static_cast<double>(total) >= wanted; });
        const double above = sum_where([&](uint32_t n) { return n > key; });
        const double each = static_cast<double>(max(share(from_ordered(key), highest), 1ULL));
        keep_equals(left, key, static_cast<unsigned long long>(max(1.0, ceil((wanted - above) / each))));
    }

    /// The random word of an id: four neighbours, which a thread visits one after another, have one draw's.
    struct Words {
        const SampledRow& how;
        int group = -1;
        PhiloxWords words = {};
        __device__ __forceinline__ uint32_t of(int id) {
            if (id / 4 != group) {
                group = id / 4;
                words = philox4x32(how.seed_low, how.seed_high, static_cast<uint32_t>(group), how.position, how.answer,
                                   how.prompt);
            }
            const int at = id % 4;
            return at == 0 ? words.w[0] : at == 1 ? words.w[1] : at == 2 ? words.w[2] : words.w[3];
        }
    };
    __device__ __forceinline__ static float roughly(float y, uint32_t w) {
        const float wait = w < 0x80000000u ? -log1pf(-(static_cast<float>(w) + 0.5F) * 0x1p-32F)
                                           : -logf((static_cast<float>(~w) + 0.5F) * 0x1p-32F);
        return y - logf(wait);
    }
    __device__ __forceinline__ static double exactly(float y, uint32_t w) {
        const double u = (static_cast<double>(w) + 0.5) * 0x1p-32;
        return static_cast<double>(y) - log(-log1p(-u));
    }

    __device__ __forceinline__ Best draw(const Left& left) const {
        const auto in = [&](int id, float y) {
            return left.ordered_in(ordered(y), id) && (y >= left.least || y == left.highest);
        };
        float rough = -INFINITY;
        Words words{how};
        visit_adjusted([&](int id, float v) {
            const float y = scaled(v);
            if (in(id, y)) rough = fmaxf(rough, roughly(y, words.of(id)));
        });
        rough = block_max(rough);
        const float bound = rough - (1e-4F + 4e-7F * fabsf(rough));
        Best best{-INFINITY, INT32_MAX};
        visit_adjusted([&](int id, float v) {
            const float y = scaled(v);
            if (!in(id, y)) return;
            const uint32_t w = words.of(id);
            if (roughly(y, w) < bound) return;
            const Best one{exactly(y, w), id};
            if (better(one, best)) best = one;
        });
        return block_best(best);
    }

    __device__ __forceinline__ void choose(int row) const {
        float highest = -INFINITY;
        bool nan = false;
        visit([&](int, float v) {
            nan = nan || isnan(v);
            highest = fmaxf(highest, v);
        });
        highest = block_max(highest);
        if (__syncthreads_or(nan) || !isfinite(highest)) {
            if (threadIdx.x == 0) a.ids[row] = 0, a.logprobs[row] = NAN;
            return;
        }
        float sum = 0;
        visit([&](int, float v) { sum += expf((v - highest) / how.logprob_divisor); });
        const double log_sum = log(block_total(sum));
        adjust();

        Best best{-INFINITY, INT32_MAX};
        visit_adjusted([&](int id, float v) {
            const Best one{how.temperature == 0 ? v : scaled(v), id};
            if (better(one, best)) best = one;
        });
        best = block_best(best);
        if (best.id == INT32_MAX) {
            if (threadIdx.x == 0) a.ids[row] = 0, a.logprobs[row] = NAN;
            return;
        }
        if (how.temperature != 0) {
            Left left;
            left.highest = static_cast<float>(best.score);
            if (how.top_k > 0 && how.top_k < a.vocabulary) keep_top_k(left);
            if (how.top_p < 1) keep_top_p(left, left.highest);
            if (how.has_min_p) {  // the least float that is not below the bound
                const double least = static_cast<double>(left.highest) + how.log_min_p;
                left.least = __double2float_ru(least);
            }
            best = draw(left);
        }
        // Its own logit, before anything changed it.
        if (threadIdx.x == 0) s.raw = to_float(logits[best.id]);
        __syncthreads();
        for (int i = how.adjusted_begin + static_cast<int>(threadIdx.x); i < how.adjusted_end; i += threads)
            if (a.adjusted[i].id == best.id) s.raw = a.adjusted[i].raw;
        __syncthreads();
        if (threadIdx.x == 0) {
            a.ids[row] = best.id;
            const double below = static_cast<double>(s.raw) - static_cast<double>(highest);
            a.logprobs[row] = static_cast<float>(below / static_cast<double>(how.logprob_divisor) - log_sum);
        }
    }
};

template <class T>
__global__ void __launch_bounds__(threads) sample_kernel(const Sampling a) {
    __shared__ Shared shared;
    const int row = blockIdx.x;
    const Row<T> r{a, a.how[row], static_cast<T*>(a.logits.data) + row * a.logits.stride, shared};
    r.choose(row);
}

}  // namespace

void sample_rows(const Sampling& args, cudaStream_t stream) {
    if (args.rows == 0) return;
    dispatch_floating(args.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(sample_kernel<T>, static_cast<unsigned>(args.rows), threads, 0, stream, args);
    });
}

}  // namespace unsloth::kernels
