#include "unsloth/commands/examine.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/attention.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/quant.h"
#include "unsloth/ops/swiglu.h"
#include "unsloth/session/session.h"
#include "unsloth/train/run_record.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace unsloth::commands {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t tokens = 192, columns = 256, outputs = 320, heads = 4, kv_heads = 2, head_dim = 64;
constexpr double eps = 1e-5;
/// Relative difference (by norms) that rounding to 8 bits of mantissa explains, with room.
constexpr double bound_of_rounding = 8e-3;

/// Not finite counts as wrong, whatever the bound.
double relative_difference(const at::Tensor& found, const at::Tensor& expected) {
    const at::Tensor on_host = found.to(at::kCPU).to(at::kDouble);
    const double difference = (on_host - expected).norm().item<double>() / expected.norm().item<double>();
    return std::isfinite(difference) ? difference : 1e9;
}

/// Causal grouped-query attention, by its definition.
at::Tensor attention_formula(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) {
    const int64_t group = heads / kv_heads;
    const at::Tensor q = q_THd.to(at::kDouble).transpose(0, 1);
    const at::Tensor k = k_TKd.to(at::kDouble).transpose(0, 1).repeat_interleave(group, 0);
    const at::Tensor v = v_TKd.to(at::kDouble).transpose(0, 1).repeat_interleave(group, 0);
    at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(head_dim));
    const at::Tensor later = at::ones({tokens, tokens}, at::kBool).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
    return scores.softmax(-1).matmul(v).transpose(0, 1);
}

/// The operators on one device, each against its formula; inputs are new in every round.
class Examination {
  public:
    explicit Examination(at::Device device)
        : ctx_(device), host_(at::kCPU), dtype_(device.is_cuda() ? at::kBFloat16 : at::kFloat) {
        const int64_t bytes =
            std::max(ops::gemm_workspace(device),
                     ops::attention_workspace(shape(), dtype_, device, false, tokens, 1, tokens, /*backward=*/false));
        ctx_.workspace = at::empty({std::max<int64_t>(bytes, 16)}, at::TensorOptions(at::kByte).device(device));
        outcome_ =
            at::zeros({static_cast<int64_t>(sizeof(spec::StepOutcome))}, at::TensorOptions(at::kByte).device(device));
        ctx_.outcome = static_cast<spec::StepOutcome*>(outcome_.data_ptr());
    }

    void round() {
        product();
        norm();
        swiglu();
        attention();
        if (ctx_.is_cuda()) four_bit();
    }

    std::vector<std::pair<std::string, double>> worst;  ///< {operator, largest difference in units of its bound}

  private:
    static ops::AttentionShape shape() {
        return {heads, kv_heads, head_dim, 0, 1 / std::sqrt(static_cast<double>(head_dim))};
    }
    at::Tensor random(at::IntArrayRef sizes) const { return at::randn(sizes).to(dtype_); }
    at::Tensor there(const at::Tensor& host) const { return host.to(ctx_.device()); }
    at::Tensor room(at::IntArrayRef sizes, at::ScalarType type) const {
        return at::full(sizes, NAN, at::TensorOptions(type).device(ctx_.device()));
    }
    void note(const std::string& name, double difference, double bound) {
        const auto known = std::find_if(worst.begin(), worst.end(), [&](const auto& one) { return one.first == name; });
        if (known == worst.end())
            worst.emplace_back(name, difference / bound);
        else
            known->second = std::max(known->second, difference / bound);
    }

    void product() {
        const at::Tensor a = random({tokens, columns}), b = random({outputs, columns});
        ops::Gemm gemm{there(a), there(b), room({tokens, outputs}, dtype_)};
        gemm.transpose_b = true;
        ops::gemm(ctx_, gemm);
        note("matrix product", relative_difference(gemm.out, a.to(at::kDouble).matmul(b.to(at::kDouble).t())),
             bound_of_rounding);
    }
    void norm() {
        const at::Tensor x = random({tokens, columns}), weight = at::randn({columns});
        const at::Tensor y = room({tokens, columns}, dtype_), rstd = room({tokens}, at::kFloat);
        ops::rms_norm_forward(ctx_, there(x), there(weight), eps, y, rstd);
        const at::Tensor exact = x.to(at::kDouble);
        const at::Tensor expected = exact * (exact.square().mean(-1, true) + eps).rsqrt() * weight.to(at::kDouble);
        note("RMS norm", relative_difference(y, expected), bound_of_rounding);
    }
    void swiglu() {
        const at::Tensor gate_up = random({tokens, 2 * columns}), out = room({tokens, columns}, dtype_);
        ops::swiglu_forward(ctx_, there(gate_up), out);
        const at::Tensor exact = gate_up.to(at::kDouble), gate = exact.slice(1, 0, columns);
        note("SwiGLU", relative_difference(out, gate * gate.sigmoid() * exact.slice(1, columns)), bound_of_rounding);
    }
    void attention() {
        const at::Tensor q = random({tokens, heads, head_dim}), k = random({tokens, kv_heads, head_dim}),
                         v = random({tokens, kv_heads, head_dim});
        ops::Segments segments;
        segments.q_offsets = segments.k_offsets = {0, static_cast<int32_t>(tokens)};
        segments.q_offsets_device = segments.k_offsets_device = there(at::tensor(segments.q_offsets, at::kInt));
        segments.max_q = segments.max_k = static_cast<int32_t>(tokens);
        segments.uniform = true;
        const at::Tensor out = room({tokens, heads, head_dim}, dtype_);
        const int64_t lse_elements = ops::attention_lse_elements(shape(), tokens);
        ops::attention_forward(ctx_, shape(), segments, there(q), there(k), there(v), out,
                               room({lse_elements}, at::kFloat));
        note("attention", relative_difference(out, attention_formula(q, k, v)), 2 * bound_of_rounding);
    }
    /// Bit for bit as on the CPU.
    void four_bit() {
        const at::Tensor weight = at::randn({outputs, columns});
        const ops::Quant4Tensor here = ops::quantize_nf4(host_, weight);
        const ops::Quant4Tensor copied = ops::upload(ctx_, here.view());
        const at::Tensor expected = at::empty({outputs, columns}, at::kFloat);
        const at::Tensor found = room({outputs, columns}, at::kFloat);
        ops::dequantize_4bit(host_, here.view(), expected);
        ops::dequantize_4bit(ctx_, copied.view(), found);
        note("NF4 to fp32", found.to(at::kCPU).equal(expected) ? 0.0 : 2.0, 1.0);
    }

    ops::Context ctx_, host_;
    at::ScalarType dtype_;
    at::Tensor outcome_;
};

#ifdef UNSLOTH_CUDA
constexpr std::size_t pinned_bytes = std::size_t{1} << 30;

double rate(void* to, const void* from, std::size_t bytes) {
    const Clock::time_point start = Clock::now();
    if (cudaMemcpy(to, from, bytes, cudaMemcpyDefault) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)
        return 0;
    return static_cast<double>(bytes) / 1e9 / train::seconds_since(start);
}

/// Pinned memory, which checkpoints and offloading need, and its rate to the device and back.
void try_pinned_memory(engine_api::DeviceReport& report) {
    void *host = nullptr, *device = nullptr;
    const cudaError_t refused = cudaHostAlloc(&host, pinned_bytes, cudaHostAllocDefault);
    if (refused == cudaSuccess && cudaMalloc(&device, pinned_bytes) == cudaSuccess) {
        std::fill_n(static_cast<char*>(host), pinned_bytes, '\1');
        rate(device, host, pinned_bytes);
        report.to_device = rate(device, host, pinned_bytes);
        report.to_host = rate(host, device, pinned_bytes);
    }
    if (refused == cudaSuccess)
        report.pinned_bytes = static_cast<int64_t>(pinned_bytes);
    else
        report.pinned_problem = cudaGetErrorString(refused);
    cudaFree(device);
    cudaFreeHost(host);
    (void)cudaGetLastError();  // a full device is no error of what follows
}

void ask_peers(engine_api::DeviceReport& report, int device, int count) {
    for (int other = 0; other < count; ++other) {
        int reaches = device == other;
        if (device != other && cudaDeviceCanAccessPeer(&reaches, device, other) != cudaSuccess) reaches = 0;
        report.peers.push_back(reaches != 0);
    }
}
#endif

/// What operators tell of their choices is a run's to log: `doctor` prints what it finds.
class QuietOperators {
  public:
    QuietOperators() { log::set_level(std::max(before_, log::Level::warning)); }
    ~QuietOperators() { log::set_level(before_); }
    QuietOperators(const QuietOperators&) = delete;
    QuietOperators& operator=(const QuietOperators&) = delete;

  private:
    log::Level before_ = log::level();
};

engine_api::DeviceReport examine(at::Device device, int count, double seconds) {
    engine_api::DeviceReport report;
    try {
        report.name = memory::describe_device(device);
        Examination examination(device);
        const Clock::time_point start = Clock::now();
        do {
            examination.round();
            ++report.rounds;
        } while (train::seconds_since(start) < seconds);
        report.operators = std::move(examination.worst);
#ifdef UNSLOTH_CUDA
        if (device.is_cuda()) try_pinned_memory(report), ask_peers(report, device.index(), count);
#endif
    } catch (const c10::Error& error) {
        report.problem = error.what_without_backtrace();
    } catch (const std::exception& error) {
        report.problem = error.what();
    }
    (void)count;
    return report;
}

}  // namespace

std::vector<engine_api::DeviceReport> examine_devices(double seconds) {
    const QuietOperators quiet;
    const int count = ops::gpu_count();
    if (count == 0) return {examine(at::kCPU, 0, seconds)};
    std::vector<engine_api::DeviceReport> reports;
    for (int i = 0; i < count; ++i) reports.push_back(examine(ops::choose_device(cat("cuda:", i)), count, seconds));
    return reports;
}

}  // namespace unsloth::commands
