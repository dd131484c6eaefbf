// The delta rule by chunks: what its passes leave for one another, and the last sums. See delta_prepare.cu,
// delta_scan.cu, delta_gradient.cu.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/delta_rule.h"

namespace unsloth::kernels {

namespace {

constexpr int64_t chunk_tokens = 64, head_size = 128;
constexpr int sum_threads = 256;

int64_t slots_of(int64_t tokens, int64_t segments) {
    return tokens / chunk_tokens + segments;
}

/// Hands out parts of one buffer, aligned to 256 bytes.
class Parts {
  public:
    explicit Parts(void* base) : base_(static_cast<unsigned char*>(base)) {}
    template <class T>
    T* take(int64_t elements) {
        unsigned char* const part = base_ + used_;
        used_ += round_up(elements * static_cast<int64_t>(sizeof(T)), 256);
        return reinterpret_cast<T*>(part);
    }
    int64_t used() const { return used_; }

  private:
    unsigned char* base_;
    int64_t used_ = 0;
};

DeltaScratch scratch_in(Parts& parts, const DeltaHeads& shape, int64_t tokens, int64_t segments) {
    const int64_t slots = slots_of(tokens, segments), heads = slots * shape.value_heads;
    DeltaScratch s;
    s.solve = parts.take<__nv_bfloat16>(heads * chunk_tokens * chunk_tokens);
    s.scores = parts.take<__nv_bfloat16>(heads * chunk_tokens * chunk_tokens);
    s.gates = parts.take<float>(heads * 2 * chunk_tokens);
    s.lengths = parts.take<float>(slots * shape.key_heads * 2 * chunk_tokens);
    s.per_token = parts.take<float>(2 * tokens * shape.value_heads);
    return s;
}

/// A block a value head; a thread its tokens in order, then the threads in order.
__global__ void __launch_bounds__(sum_threads)
    add_over_tokens_kernel(const float* per_token, int64_t tokens, int heads, float* a_log, float* dt_bias) {
    __shared__ float shared[32];
    const int head = static_cast<int>(blockIdx.x);
    float da = 0.0f, dlog = 0.0f;
    for (int64_t t = threadIdx.x; t < tokens; t += sum_threads) {
        da += per_token[t * heads + head];
        dlog += per_token[(tokens + t) * heads + head];
    }
    da = block_sum(da, shared);
    dlog = block_sum(dlog, shared);
    if (threadIdx.x != 0) return;
    if (dt_bias != nullptr) dt_bias[head] += da;
    if (a_log != nullptr) a_log[head] += dlog;
}

}  // namespace

bool delta_chunked_serves(const DeltaHeads& shape, spec::DType type) {
    return shape.key_dim == head_size && shape.value_dim == head_size &&
           (type == spec::DType::bf16 || type == spec::DType::f16);
}

int64_t delta_chunked_scratch_bytes(const DeltaHeads& shape, int64_t tokens, int64_t segments) {
    Parts parts(nullptr);
    scratch_in(parts, shape, tokens, segments);
    return parts.used();
}

void delta_chunked_place(DeltaRule& p, void* workspace, void* states) {
    Parts parts(workspace);
    p.scratch = scratch_in(parts, p.shape, p.segments.tokens, p.segments.count);
    p.slots = slots_of(p.segments.tokens, p.segments.count);
    if (states == nullptr) return;
    p.scratch.S = static_cast<__nv_bfloat16*>(states);
    p.scratch.dS = p.scratch.S + p.slots * p.shape.value_heads * head_size * head_size;
}

void delta_add_over_tokens(const DeltaRule& p, cudaStream_t stream) {
    if (p.out.a_log == nullptr && p.out.dt_bias == nullptr) return;
    UNSLOTH_LAUNCH(add_over_tokens_kernel, dim3(static_cast<unsigned>(p.shape.value_heads)), dim3(sum_threads), 0,
                   stream, p.scratch.per_token, p.segments.tokens, p.shape.value_heads, p.out.a_log, p.out.dt_bias);
}

}  // namespace unsloth::kernels
