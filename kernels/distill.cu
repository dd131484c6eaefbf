// A student's loss against a teacher over long rows: a block a row.
//
// Against all logits: one pass over both rows for the maxima and sums of three softmaxes (the student's at temperature
// 1 and T, the teacher's at T), one for the divergence, one for the gradient. Against the teacher's top-k tokens:
// their logits are taken out of the row (-inf meanwhile), so that one pass gives the sum over all others
// without a difference of sums that are nearly equal, and another writes the gradient. Ceiling: the bandwidth of
// memory, as cross-entropy's; the second and third pass over rows in work are the L2 cache's as far as they fit.
#include "kernels/common/launch.h"
#include "kernels/common/online_softmax.cuh"
#include "kernels/distill.h"

namespace unsloth::kernels {
namespace {

constexpr int row_threads = 1024;

/// each(column, a, b) for the columns that a thread has.
template <class T, int N, class Each>
__device__ __forceinline__ void each_pair(const T* a, const T* b, int columns, Each each) {
    const int packs = columns / N;
    for (int pack = threadIdx.x; pack < packs; pack += row_threads) {
        const Pack<T, N> left = load_pack<N>(a + pack * N), right = load_pack<N>(b + pack * N);
#pragma unroll
        for (int k = 0; k < N; ++k) each(pack * N + k, to_float(left.v[k]), to_float(right.v[k]));
    }
    for (int c = packs * N + threadIdx.x; c < columns; c += row_threads) each(c, to_float(a[c]), to_float(b[c]));
}

/// row[column] = value(column, row[column]).
template <class T, int N, class Value>
__device__ __forceinline__ void rewrite(T* row, int columns, Value value) {
    const int packs = columns / N;
    for (int pack = threadIdx.x; pack < packs; pack += row_threads) {
        Pack<T, N> loaded = load_pack<N>(row + pack * N);
#pragma unroll
        for (int k = 0; k < N; ++k) loaded.v[k] = from_float<T>(value(pack * N + k, to_float(loaded.v[k])));
        store_pack(row + pack * N, loaded);
    }
    for (int c = packs * N + threadIdx.x; c < columns; c += row_threads)
        row[c] = from_float<T>(value(c, to_float(row[c])));
}

struct RowScales {
    float labels, divergence;
};

__device__ __forceinline__ RowScales scales_of(const DistillLoss& p) {
    const float step = p.scalars->inv_loss_divisor * p.scalars->loss_scale;
    return {step * static_cast<float>(1 - p.rule.alpha), step * static_cast<float>(p.rule.alpha * p.rule.temperature)};
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads, 1) distill_all_kernel(const DistillLoss p) {
    __shared__ float scratch[32];
    T* const row = static_cast<T*>(p.logits.data) + blockIdx.x * p.logits.stride;
    const T* const teacher = static_cast<const T*>(p.teacher.data) + blockIdx.x * p.teacher.stride;
    const int columns = static_cast<int>(p.columns), common = min(columns, static_cast<int>(p.teacher_columns));
    const int target = p.targets[blockIdx.x];
    const float target_logit = threadIdx.x == 0 ? to_float(row[target]) : 0.f;  // read before the gradient replaces it
    const float inverse = static_cast<float>(1 / p.rule.temperature), beta = static_cast<float>(p.rule.beta);
    OnlineSoftmax labels, of_student, of_teacher;
    each_pair<T, N>(row, teacher, common, [&](int, float s, float t) {
        labels.add(s);
        of_student.add(s * inverse);
        of_teacher.add(t * inverse);
    });
    for (int c = common + threadIdx.x; c < columns; c += row_threads) labels.add(to_float(row[c]));
    const float all = merge_block<row_threads>(labels).log_sum();
    __syncthreads();
    const float student_sum = merge_block<row_threads>(of_student).log_sum();
    __syncthreads();
    const float teacher_sum = merge_block<row_threads>(of_teacher).log_sum();
    float loss = 0.f, centre = 0.f;
    each_pair<T, N>(row, teacher, common, [&](int, float s, float t) {
        const auto term =
            spec::divergence_term<float>(p.rule.type, beta, t * inverse - teacher_sum, s * inverse - student_sum);
        loss += term.loss;
        centre += term.centre;
    });
    loss = block_sum(loss, scratch);
    centre = block_sum(centre, scratch);
    if (threadIdx.x == 0) {
        p.losses[blockIdx.x] = all - target_logit;
        p.divergence[blockIdx.x] = loss;
    }
    if (!p.gradient) return;
    const RowScales scale = scales_of(p);
    const auto of_labels = [&](int c, float s) { return scale.labels * (__expf(s - all) - (c == target ? 1.f : 0.f)); };
    const auto gradient = [&](int c, float s, float t) {
        return of_labels(c, s) + scale.divergence * spec::divergence_slope<float>(p.rule.type, beta,
                                                                                  t * inverse - teacher_sum,
                                                                                  s * inverse - student_sum, centre);
    };
    const int packs = common / N;
    for (int pack = threadIdx.x; pack < packs; pack += row_threads) {
        Pack<T, N> s = load_pack<N>(row + pack * N);
        const Pack<T, N> t = load_pack<N>(teacher + pack * N);
#pragma unroll
        for (int k = 0; k < N; ++k) s.v[k] = from_float<T>(gradient(pack * N + k, to_float(s.v[k]), to_float(t.v[k])));
        store_pack(row + pack * N, s);
    }
    for (int c = packs * N + threadIdx.x; c < common; c += row_threads)
        row[c] = from_float<T>(gradient(c, to_float(row[c]), to_float(teacher[c])));
    for (int c = common + threadIdx.x; c < columns; c += row_threads)
        row[c] = from_float<T>(of_labels(c, to_float(row[c])));
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads, 1) distill_named_kernel(const DistillLoss p) {
    extern __shared__ float named[];  // [k]: the student's logits of the teacher's tokens
    __shared__ float scratch[32];
    T* const row = static_cast<T*>(p.logits.data) + blockIdx.x * p.logits.stride;
    const int columns = static_cast<int>(p.columns), k = static_cast<int>(p.k);
    const int32_t* const ids = p.ids + blockIdx.x * p.k;
    const float* const logp = p.logp + blockIdx.x * (p.k + 1);
    const int target = p.targets[blockIdx.x];
    const float target_logit = threadIdx.x == 0 ? to_float(row[target]) : 0.f;  // read before its place is taken
    const float inverse = static_cast<float>(1 / p.rule.temperature), beta = static_cast<float>(p.rule.beta);
    __syncthreads();
    OnlineSoftmax labels, of_named, of_others;
    for (int i = threadIdx.x; i < k; i += row_threads) {
        named[i] = to_float(row[ids[i]]);
        row[ids[i]] = from_float<T>(-INFINITY);
        labels.add(named[i]);
        of_named.add(named[i] * inverse);
    }
    __syncthreads();
    each_pair<T, N>(row, row, columns, [&](int, float s, float) {
        labels.add(s);
        of_others.add(s * inverse);
    });
    const float all = merge_block<row_threads>(labels).log_sum();
    __syncthreads();
    OnlineSoftmax total = merge_block<row_threads>(of_named);
    __syncthreads();
    const OnlineSoftmax others = merge_block<row_threads>(of_others);
    total.merge(others.maximum, others.sum);
    const float student_sum = total.log_sum(), others_sum = others.log_sum();
    const auto log_q = [&](int i) { return (i < k ? named[i] * inverse : others_sum) - student_sum; };
    float loss = 0.f, centre = 0.f;
    for (int i = threadIdx.x; i <= k; i += row_threads) {
        const auto term = spec::divergence_term<float>(p.rule.type, beta, logp[i], log_q(i));
        loss += term.loss;
        centre += term.centre;
    }
    loss = block_sum(loss, scratch);
    centre = block_sum(centre, scratch);
    if (threadIdx.x == 0) {
        p.losses[blockIdx.x] = all - target_logit;
        p.divergence[blockIdx.x] = loss;
    }
    if (!p.gradient) {
        for (int i = threadIdx.x; i < k; i += row_threads) row[ids[i]] = from_float<T>(named[i]);
        return;
    }
    const RowScales scale = scales_of(p);
    const auto of_labels = [&](int c, float s) { return scale.labels * (__expf(s - all) - (c == target ? 1.f : 0.f)); };
    const auto slope = [&](int i) {
        return scale.divergence * spec::divergence_slope<float>(p.rule.type, beta, logp[i], log_q(i), centre);
    };
    const float of_rest = others.sum > 0.f ? slope(k) / others.sum : 0.f;
    rewrite<T, N>(row, columns,
                  [&](int c, float s) { return of_labels(c, s) + of_rest * __expf(s * inverse - others.maximum); });
    __syncthreads();
    for (int i = threadIdx.x; i < k; i += row_threads)
        row[ids[i]] = from_float<T>(of_labels(ids[i], named[i]) + slope(i));
}

__global__ void __launch_bounds__(row_threads) accumulate_distilled_kernel(const AccumulateDistilled p) {
    const double2 sums = block_sums_f64<row_threads>(p.losses, p.divergence, p.count);
    if (threadIdx.x != 0) return;
    const double total = p.by_losses * sums.x + p.by_divergence * sums.y;
    p.outcome->loss = static_cast<float>(p.outcome->loss + total * p.scalars->inv_loss_divisor);
    if (p.site != spec::all_finite && !isfinite(total)) atomicMin(&p.outcome->first_bad_site, p.site);
    p.measures[0] += static_cast<float>(sums.x);
    p.measures[1] += static_cast<float>(sums.y);
    p.measures[2] += static_cast<float>(p.count);
}

template <class T, int N>
void launch(const DistillLoss& p, cudaStream_t stream) {
    const auto rows = static_cast<unsigned>(p.rows);
    if (p.teacher.data != nullptr) {
        UNSLOTH_LAUNCH((distill_all_kernel<T, N>), rows, row_threads, 0, stream, p);
    } else {
        UNSLOTH_LAUNCH((distill_named_kernel<T, N>), rows, row_threads, static_cast<size_t>(p.k) * sizeof(float),
                       stream, p);
    }
}

}  // namespace

void distill_loss(const DistillLoss& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const int64_t several = p.rows > 1 ? 1 : 0;
        const bool aligned =
            aligned_16(p.logits.data, {several * p.logits.stride}, p.type) &&
            (p.teacher.data == nullptr || aligned_16(p.teacher.data, {several * p.teacher.stride}, p.type));
        aligned ? launch<T, vector_width<T>>(p, stream) : launch<T, 1>(p, stream);
    });
}

void accumulate_distilled(const AccumulateDistilled& p, cudaStream_t stream) {
    UNSLOTH_LAUNCH(accumulate_distilled_kernel, 1, row_threads, 0, stream, p);
}

}  // namespace unsloth::kernels
