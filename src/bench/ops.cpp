#include "bench/ops.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/philox.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/shapes.h"
#include "unsloth/memory/plan.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/attention.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/optimizer.h"
#include "unsloth/ops/quant.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"
#include "unsloth/session/session.h"

namespace unsloth::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Line {
    std::string name, shape;
    double ms = 0;
    double bytes = 0, operations = 0;  ///< what the operator must move or do; one of them 0
};

class OpBench {
  public:
    OpBench(ops::Context& ctx, const spec::ModelSpec& spec, at::ScalarType dtype,
            const engine_api::BenchRequest& request)
        : ctx_(ctx),
          spec_(spec),
          dtype_(dtype),
          batch_(request.batch),
          seq_(request.seq),
          tokens_(batch_ * seq_),
          steps_(std::max<int64_t>(request.steps, 3)),
          lengths_(row_lengths(batch_, seq_, request.min_seq)) {
        item_ = static_cast<double>(c10::elementSize(dtype));
    }

    std::vector<Line> run() {
        prepare_workspace();
        copy_ceiling();
        gemms();
        dequantise();
        elementwise();
        attention();
        head();
        optimizer();
        return std::move(lines_);
    }

  private:
    at::Tensor random(at::IntArrayRef sizes) const { return at::randn(sizes, options()); }
    at::Tensor floats(at::IntArrayRef sizes) const { return at::randn(sizes, options().dtype(at::kFloat)); }
    at::TensorOptions options() const { return at::TensorOptions().dtype(dtype_).device(ctx_.device()); }

    /// Median over rounds of the mean of a few back-to-back calls.
    void measure(std::string name, std::string shape, double bytes, double operations,
                 const std::function<void()>& body) {
        const int calls = ctx_.is_cuda() ? 10 : 1;
        body();
        std::vector<double> ms;
        for (int64_t round = 0; round < steps_; ++round) {
            synchronize(ctx_);
            const auto start = Clock::now();
            for (int i = 0; i < calls; ++i) body();
            synchronize(ctx_);
            ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() / calls);
        }
        lines_.push_back({std::move(name), std::move(shape), median(std::move(ms)), bytes, operations});
    }

    ops::Segments segments() const {
        ops::Segments s;
        s.q_offsets = {0};
        for (const int64_t length : lengths_) s.q_offsets.push_back(s.q_offsets.back() + static_cast<int32_t>(length));
        s.k_offsets = s.q_offsets;
        s.q_offsets_device = s.k_offsets_device = at::tensor(s.q_offsets, at::kInt).to(ctx_.device());
        s.max_q = s.max_k = static_cast<int32_t>(seq_);
        s.uniform = std::all_of(lengths_.begin(), lengths_.end(), [&](int64_t length) { return length == seq_; });
        return s;
    }

    void prepare_workspace() {
        const int64_t attention = ops::attention_workspace(model::attention_shape(spec_, 0), dtype_, ctx_.device(),
                                                           ctx_.deterministic, tokens_, batch_, seq_);
        const int64_t norm = ops::norm_backward_workspace(ctx_.device(), tokens_, spec_.hidden_size);
        ctx_.workspace = at::empty({std::max({attention, norm, ops::gemm_workspace(ctx_.device()), int64_t{1}})},
                                   options().dtype(at::kByte));
    }

    void copy_ceiling() {
        const int64_t count = ctx_.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 26;
        const at::Tensor from = at::ones({count}, options().dtype(at::kByte)), to = at::empty_like(from);
        measure("copy (ceiling)", cat(count >> 20, " MiB"), 2.0 * static_cast<double>(count), 0,
                [&] { to.copy_(from); });
        const int64_t n = ctx_.is_cuda() ? 8192 : 1024;
        const at::Tensor a = random({n, n}), b = random({n, n}), c = at::empty({n, n}, options());
        const auto cube = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
        measure("gemm (ceiling)", cat(n, "^3"), 0, 2 * cube,
                [&] { ops::gemm(ctx_, {.a = a, .b = b, .out = c, .transpose_b = true}); });
    }

    void gemms() {
        const weights::LayerLayout layout = weights::make_layout(spec_, {});
        for (const weights::Group g : layout.single_groups()) {
            const int64_t n = layout[g].n, k = layout[g].k;
            const at::Tensor w = random({n, k}), x = random({tokens_, k}), y = random({tokens_, n});
            const double operations =
                2.0 * static_cast<double>(tokens_) * static_cast<double>(n) * static_cast<double>(k);
            measure(cat("gemm ", name_of(g), " forward"), cat(tokens_, "x", n, "x", k), 0, operations,
                    [&] { ops::gemm(ctx_, {.a = x, .b = w, .out = y, .transpose_b = true}); });
            measure(cat("gemm ", name_of(g), " dx"), cat(tokens_, "x", k, "x", n), 0, operations,
                    [&] { ops::gemm(ctx_, {.a = y, .b = w, .out = x}); });
        }
    }

    void dequantise() {
        const int64_t n = spec_.intermediate_size, k = spec_.hidden_size;
        const ops::Quant4Tensor packed = ops::quantize_nf4(ctx_, random({n, k}));
        const at::Tensor out = at::empty({n, k + 16}, options());
        const auto elements = static_cast<double>(n * k);
        measure("dequantise NF4", cat(n, "x", k), elements * (0.5 + 1.0 / 64 + item_), 0,
                [&] { ops::dequantize_4bit(ctx_, packed.view(), out.narrow(1, 0, k)); });
    }

    void elementwise() {
        const int64_t d = spec_.hidden_size, f = spec_.intermediate_size, heads = spec_.num_heads + spec_.num_kv_heads;
        const auto row = static_cast<double>(tokens_) * item_;
        const at::Tensor x = random({tokens_, d}), y = at::empty_like(x), g = random({tokens_, d}), w = floats({d}),
                         rstd = floats({tokens_});
        measure("rms_norm forward", cat(tokens_, "x", d), 2 * row * static_cast<double>(d), 0,
                [&] { ops::rms_norm_forward(ctx_, x, w, 1e-5, y, rstd); });
        measure("rms_norm backward", cat(tokens_, "x", d), 4 * row * static_cast<double>(d), 0,
                [&] { ops::rms_norm_backward(ctx_, y, x, w, rstd, g, {}); });
        const at::Tensor positions = at::arange(tokens_, options().dtype(at::kInt)).remainder(seq_).to(at::kInt),
                         inv = floats({spec_.head_dim / 2}).abs();
        const at::Tensor cos = floats({tokens_, spec_.head_dim / 2}), sin = floats({tokens_, spec_.head_dim / 2});
        ops::rope_table(ctx_, positions, inv, 1.0, cos, sin);
        const at::Tensor qk = random({tokens_, heads, spec_.head_dim});
        measure(
            "rope", cat(tokens_, "x", heads, "x", spec_.head_dim),
            2 * row * static_cast<double>(heads * spec_.head_dim) + 4.0 * static_cast<double>(tokens_ * spec_.head_dim),
            0, [&] { ops::rope_apply(ctx_, qk, cos, sin, false); });
        const at::Tensor gate_up = random({tokens_, 2 * f}), act = random({tokens_, f});
        measure("swiglu forward", cat(tokens_, "x", f), 3 * row * static_cast<double>(f), 0,
                [&] { ops::swiglu_forward(ctx_, gate_up, act); });
        measure("swiglu backward", cat(tokens_, "x", f), 5 * row * static_cast<double>(f), 0,
                [&] { ops::swiglu_backward(ctx_, act, gate_up); });
    }

    void attention() {
        const ops::Segments s = segments();
        const int64_t tokens = s.q_offsets.back();
        const ops::AttentionShape shape = model::attention_shape(spec_, 0);
        const int64_t width = spec_.q_size() + 2 * spec_.kv_size();
        const at::Tensor qkv = random({tokens, width}), dqkv = at::empty_like(qkv),
                         out = random({tokens, spec_.num_heads, spec_.head_dim}), dout = at::randn_like(out);
        const auto part = [&](const at::Tensor& t, int64_t begin, int64_t heads) {
            return t.narrow(1, begin, heads * spec_.head_dim).unflatten(1, {heads, spec_.head_dim});
        };
        const int64_t q = spec_.q_size(), kv = spec_.kv_size();
        const at::Tensor lse = at::empty({ops::attention_lse_elements(shape, tokens)}, options().dtype(at::kFloat));
        const at::Tensor sinks = shape.sinks ? at::zeros({spec_.num_heads}, lse.options()) : at::Tensor();
        double operations = 0;
        for (const int64_t length : lengths_)
            operations += 2.0 * static_cast<double>(length) * static_cast<double>(length) * static_cast<double>(q);
        const std::string rows = s.uniform ? cat(batch_, "x", seq_) : cat(batch_, " rows, ", tokens, " tokens");
        const auto qh = part(qkv, 0, spec_.num_heads), kh = part(qkv, q, spec_.num_kv_heads),
                   vh = part(qkv, q + kv, spec_.num_kv_heads);
        measure("attention forward", rows, 0, operations,
                [&] { ops::attention_forward(ctx_, shape, s, qh, kh, vh, out, lse, sinks); });
        measure("attention backward", rows, 0, 2.5 * operations, [&] {
            ops::attention_backward(ctx_, shape, s, dout, qh, kh, vh, out, lse, part(dqkv, 0, spec_.num_heads),
                                    part(dqkv, q, spec_.num_kv_heads), part(dqkv, q + kv, spec_.num_kv_heads));
        });
    }

    void head() {
        const int64_t rows = placement::head_chunk_rows(spec_, dtype_, tokens_);
        const at::Tensor logits = random({rows, spec_.vocab_size}), losses = floats({rows});
        const at::Tensor targets = at::randint(spec_.vocab_size, {rows}, options().dtype(at::kInt));
        const at::Tensor scalars =
            at::zeros({static_cast<int64_t>(sizeof(spec::StepScalars))}, options().dtype(at::kByte));
        ctx_.scalars = reinterpret_cast<const spec::StepScalars*>(scalars.data_ptr<uint8_t>());
        measure("cross-entropy + gradient", cat(rows, "x", spec_.vocab_size),
                3.0 * static_cast<double>(rows * spec_.vocab_size) * item_, 0,
                [&] { ops::cross_entropy(ctx_, logits, targets, losses, true); });
        ctx_.scalars = nullptr;
        if (ctx_.is_cuda() && (dtype_ != at::kBFloat16 || spec_.vocab_size % 8 != 0)) return;  // there are no codes
        const ops::CodedMatrix codes{at::empty(logits.sizes(), options().dtype(at::kFloat8_e4m3fn)), losses};
        measure("codes of logits", cat(rows, "x", spec_.vocab_size),
                static_cast<double>(rows * spec_.vocab_size) * (item_ + 1), 0,
                [&] { ops::quantize_rows(ctx_, logits, codes); });
    }

    void optimizer() {
        const int64_t count = int64_t{1} << (ctx_.is_cuda() ? 25 : 20), blocks = count / ops::optimizer_block;
        const auto bytes = options().dtype(at::kByte);
        ops::AdamwState state;
        state.params_P = floats({count});
        state.grads_P = floats({count});
        state.flags_b = at::full({blocks}, ops::block_decays | ops::block_8bit, bytes);
        state.slot_b = at::arange(blocks, options().dtype(at::kInt));
        state.m32 = state.v32 = at::empty({0}, options().dtype(at::kFloat));
        state.m8 = at::zeros({count}, bytes);
        state.v8 = at::zeros({count}, bytes);
        state.absmax_m8 = at::zeros({blocks}, options().dtype(at::kFloat));
        state.absmax_v8 = at::zeros({blocks}, options().dtype(at::kFloat));
        state.maps = ops::dynamic_maps(ctx_.device());
        spec::StepScalars start{};
        start.step = 1;
        start.loss_scale = 1.0F;
        start.bias_correction1 = start.bias_correction2 = 0.1F;
        spec::StepOutcome clean{};
        clean.first_bad_site = spec::all_finite;
        const at::Tensor scalars =
            at::from_blob(&start, {static_cast<int64_t>(sizeof start)}, at::kByte).clone().to(ctx_.device());
        const at::Tensor outcome =
            at::from_blob(&clean, {static_cast<int64_t>(sizeof clean)}, at::kByte).clone().to(ctx_.device());
        ctx_.scalars = reinterpret_cast<const spec::StepScalars*>(scalars.data_ptr<uint8_t>());
        ctx_.outcome = reinterpret_cast<spec::StepOutcome*>(outcome.data_ptr<uint8_t>());
        const at::Tensor scratch = at::empty({ops::gradient_norm_scratch(count)}, bytes);
        measure("gradient norm", cat(count >> 20, " Mi elements"), 4.0 * static_cast<double>(count), 0,
                [&] { ops::gradient_norm(ctx_, state.grads_P, scratch); });
        measure("AdamW 8-bit", cat(count >> 20, " Mi elements"), 16.0 * static_cast<double>(count), 0,
                [&] { ops::adamw_step(ctx_, state, {}); });
        ctx_.scalars = nullptr;
        ctx_.outcome = nullptr;
    }

    ops::Context& ctx_;
    const spec::ModelSpec& spec_;
    at::ScalarType dtype_;
    int64_t batch_, seq_, tokens_, steps_;
    std::vector<int64_t> lengths_;  ///< of attention's rows
    double item_;
    std::vector<Line> lines_;
};

}  // namespace

std::vector<int64_t> row_lengths(int64_t count, int64_t longest, int64_t shortest) {
    std::vector<int64_t> lengths(static_cast<std::size_t>(count), longest);
    if (shortest == 0) return lengths;
    for (int64_t i = 1; i < count; ++i)
        lengths[static_cast<std::size_t>(i)] = longest - i * (longest - shortest) / (count - 1);
    for (int64_t i = count - 1; i > 0; --i)
        std::swap(lengths[static_cast<std::size_t>(i)],
                  lengths[philox4x32(3, 4, static_cast<uint32_t>(i), 0, 0, 0).w[0] % static_cast<uint32_t>(i + 1)]);
    return lengths;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void synchronize(ops::Context& ctx) {
    if (ctx.is_cuda()) c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).synchronizeDevice(ctx.device().index());
}

spec::ModelSpec benched_spec(const config::LoadedConfig& loaded, const std::string& otherwise) {
    const std::string& path = loaded.config.model.path;
    return path.empty() ? formats::builtin_shape(otherwise)
                        : formats::read_model_spec(formats::resolve_model_path(path));
}

std::vector<engine_api::BenchFigure> bench_ops(const config::LoadedConfig& loaded,
                                               const engine_api::BenchRequest& request) {
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
    const spec::ModelSpec spec = benched_spec(loaded, device.is_cuda() ? "llama-3.1-8b" : "llama-15m");
    ops::Context ctx(device);
    ctx.deterministic = loaded.config.training.deterministic;
    const std::vector<Line> lines = OpBench(ctx, spec, ops::scalar_type(loaded.config.model.dtype), request).run();
    const double copy = lines[0].bytes / lines[0].ms, product = lines[1].operations / lines[1].ms;  // per ms
    if (request.prints && !request.json)
        std::printf("%s\n%-28s %-24s %10s %16s %8s\n", memory::describe_device(device).c_str(), "operator", "shape",
                    "ms", "rate", "share");
    std::vector<engine_api::BenchFigure> figures;
    for (const Line& line : lines) {
        const bool moves = line.bytes > 0;
        const double rate = (moves ? line.bytes : line.operations) / line.ms, share = rate / (moves ? copy : product);
        if (&line >= &lines[2])  // after the ceilings
            figures.push_back({line.name, moves ? rate / 1e6 : rate / 1e9, moves ? "GB/s" : "TF/s", share});
        if (!request.prints) continue;
        if (request.json) {
            std::cout << nlohmann::ordered_json{{"bench", "ops"},
                                                {"device", memory::describe_device(device)},
                                                {"op", line.name},
                                                {"shape", line.shape},
                                                {"ms", line.ms},
                                                {moves ? "gb_per_second" : "tflops", moves ? rate / 1e6 : rate / 1e9},
                                                {"share_of_ceiling", share}}
                             .dump()
                      << "\n";
        } else {
            std::printf("%-28s %-24s %10.4f %11.1f %-4s %7.1f%%\n", line.name.c_str(), line.shape.c_str(), line.ms,
                        moves ? rate / 1e6 : rate / 1e9, moves ? "GB/s" : "TF/s", 100 * share);
        }
    }
    std::cout.flush();
    return figures;
}

double copy_rate(ops::Context& ctx) {
    const int64_t bytes = ctx.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 26;
    const auto options = at::TensorOptions(at::kByte).device(ctx.device());
    const at::Tensor from = at::ones({bytes}, options), to = at::empty_like(from);
    std::vector<double> seconds;
    for (int round = 0; round < 12; ++round) {
        synchronize(ctx);
        const auto begin = std::chrono::steady_clock::now();
        to.copy_(from);
        synchronize(ctx);
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return 2.0 * static_cast<double>(bytes) / median(seconds);
}

}  // namespace unsloth::bench
