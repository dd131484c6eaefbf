// `bench step`: the training step on random tokens, against this device's measured ceilings.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/philox.h"
#include "unsloth/ops/fp8.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/train/bench_gemm.h"
#include "unsloth/train/bench_nf4.h"
#include "unsloth/train/bench_ops.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/session.h"
#include "unsloth/train/step.h"

namespace unsloth::train {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Lengths of the rows: all the longest, or spread evenly down to `shortest` and shuffled.
std::vector<int64_t> row_lengths(int64_t count, int64_t longest, int64_t shortest) {
    std::vector<int64_t> lengths(static_cast<std::size_t>(count), longest);
    if (shortest == 0) return lengths;
    for (int64_t i = 1; i < count; ++i) lengths[static_cast<std::size_t>(i)] = longest - i * (longest - shortest) / (count - 1);
    for (int64_t i = count - 1; i > 0; --i)
        std::swap(lengths[static_cast<std::size_t>(i)], lengths[philox4x32(3, 4, static_cast<uint32_t>(i), 0, 0, 0).w[0] % static_cast<uint32_t>(i + 1)]);
    return lengths;
}

/// Rows of random tokens, every one but the first a target, as peers' step benchmarks use.
StepBatch random_step(const ModelSpec& spec, const std::vector<int64_t>& lengths, uint32_t step) {
    std::vector<Sample> samples(lengths.size());
    for (std::size_t row = 0; row < samples.size(); ++row) {
        Sample& sample = samples[row];
        for (int32_t t = 0; t < static_cast<int32_t>(lengths[row]); ++t) {
            const uint32_t word = philox4x32(1, 2, static_cast<uint32_t>(t), static_cast<uint32_t>(row), step, 0).w[0];
            sample.ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(spec.vocab_size)));
            sample.positions.push_back(t);
        }
        sample.labels = sample.ids;
        sample.row = static_cast<int64_t>(row);
    }
    std::vector<const Sample*> pointers;
    for (const Sample& sample : samples) pointers.push_back(&sample);
    StepBatch result;
    result.micro.push_back(make_batch(pointers));
    result.labels = result.micro.front().labels;
    result.tokens = result.micro.front().tokens();
    return result;
}

/// Operations that a step does, in multiply-adds times two: base products (forward, dx, and what of the forward is run again),
/// attention (causal: half; backward 2.5 times the forward), lm_head forward and dx.
struct StepOperations {
    double base = 0, head = 0, attention = 0;
};

StepOperations count_operations(const ModelSpec& spec, const std::vector<int64_t>& lengths, Keep keep) {
    double tokens = 0, pairs = 0;
    for (const int64_t length : lengths) {
        tokens += static_cast<double>(length);
        pairs += static_cast<double>(length) * static_cast<double>(length) / 2;
    }
    const auto weights = [&](std::initializer_list<Projection> projections) {
        double sum = 0;
        for (const Projection p : projections) sum += static_cast<double>(spec.out_features(p) * spec.in_features(p));
        return sum;
    };
    const double qkv = weights({Projection::q, Projection::k, Projection::v}), o = weights({Projection::o});
    const double gate_up = weights({Projection::gate, Projection::up}), down = weights({Projection::down});
    const LayerSteps again = recompute_of(keep);
    const double layers = static_cast<double>(spec.num_layers);
    const double passes = layers * (2 * (qkv + o + gate_up + down) + (again.qkv ? qkv : 0) + (again.mid ? o : 0) + (again.gate_up ? gate_up : 0));
    const double head = 2.0 * static_cast<double>(spec.vocab_size * spec.hidden_size);
    const double scores = layers * pairs * static_cast<double>(spec.q_size()) * 4;
    return {2 * tokens * passes, 2 * tokens * head, scores * (3.5 + (again.attention ? 1 : 0))};
}

/// The rate of an n³ product on this device now, in operations per second.
double measure_rate(ops::Context& ctx, int64_t n, const std::function<void()>& multiply) {
    const int rounds = ctx.is_cuda() ? 20 : 3;
    std::vector<double> seconds;
    for (int i = 0; i < rounds + 3; ++i) {
        synchronize(ctx);
        const auto start = Clock::now();
        multiply();
        synchronize(ctx);
        if (i >= 3) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / median(seconds);
}

/// What large products reach here: of the compute type, and of the type that the base is multiplied in.
struct Ceilings {
    double compute = 0, base = 0;
};

Ceilings measure_ceilings(ops::Context& ctx, at::ScalarType dtype, bool fp8) {
    const int64_t n = ctx.is_cuda() ? 8192 : 1024;
    const auto options = at::TensorOptions().dtype(dtype).device(ctx.device());
    const at::Tensor a = at::randn({n, n}, options), b = at::randn({n, n}, options), c = at::empty({n, n}, options);
    Ceilings rates;
    rates.compute = rates.base = measure_rate(ctx, n, [&] { ops::gemm(ctx, {.a = a, .b = b, .out = c, .transpose_b = true}); });
    if (!fp8) return rates;
    const auto codes = [&](const at::Tensor& x) {
        const ops::Fp8Matrix out{at::empty({n, n}, options.dtype(at::kFloat8_e4m3fn)), at::empty({n}, options.dtype(at::kFloat))};
        ops::quantize_rows_fp8(ctx, x, out);
        return out;
    };
    const ops::Fp8Matrix a8 = codes(a), b8 = codes(b);
    rates.base = measure_rate(ctx, n, [&] { ops::gemm_fp8(ctx, {.x = a8, .w = b8, .out = c}); });
    return rates;
}

struct StepTimes {
    double ms = 0;  ///< mean of the measured steps
    double loss = 0;
    bool skipped = false;
};

StepTimes time_steps(model::Model& model, ops::Context& ctx, const Config& config, const BenchRequest& request,
                     const std::vector<int64_t>& lengths) {
    const TrainingOptions& t = config.training;
    Stepper stepper(ctx, model, {.adamw = {t.adam_beta1, t.adam_beta2, t.adam_epsilon, t.weight_decay}, .max_grad_norm = t.max_grad_norm,
                                 .seed = 1, .loss_scaling = config.model.dtype == DType::f16});
    const StepBatch batch = random_step(model.spec(), lengths, 0);
    StepTimes times;
    const auto take = [&](bool must) {
        while (const auto result = stepper.take(must)) {
            times.loss = result->outcome.loss;
            times.skipped = times.skipped || result->outcome.skipped != 0;
        }
    };
    int64_t step = 0;
    // As in a run, the host issues a step while the one before computes. Between two results the host may wait in the issue of a long
    // step, so that single intervals say little: the whole of them counts, from one moment with nothing under way to another.
    const auto steps = [&](int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            stepper.issue(batch, ++step, t.learning_rate);
            take(/*must=*/false);
        }
        take(/*must=*/true);
    };
    steps(request.warmup);
    const auto start = Clock::now();
    steps(request.steps);
    times.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count() / static_cast<double>(request.steps);
    const std::string& trace = config.logging.profile;
    if (!trace.empty()) profile(ctx, trace, [&] { steps(1); });
    return times;
}

void bench_step(const LoadedConfig& loaded, const BenchRequest& request) {
    const int64_t batch = request.batch, seq = request.seq;
    if (request.min_seq > seq) throw usage_error(cat("--min_seq ", request.min_seq, " is more than --seq ", seq));
    const OpenedModel opened = open_model(loaded.config);
    const ModelSpec& spec = opened.file->spec;
    const at::Device device = choose_device(loaded.config.hardware.device);
    model::LoadRequest load = load_request(loaded, device, /*trains=*/true);
    const std::vector<int64_t> lengths = row_lengths(batch, seq, request.min_seq);
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    load.sizes.tokens = load.sizes.head_rows = tokens;
    load.sizes.segments = batch;
    load.sizes.longest = seq;
    load.sizes.head_chunk = head_chunk_rows(spec, load.dtype, load.sizes.head_rows);
    load.sizes.deterministic = loaded.config.training.deterministic;
    model::ModelPlan plan(opened.file, load);
    choose_memory_use(loaded.config, plan);
    require_memory(plan);
    const std::unique_ptr<ops::Context> context = make_context(loaded.config, device);
    ops::Context& ctx = *context;
    model::Model model(ctx, plan.load(ctx));
    const StepTimes times = time_steps(model, ctx, loaded.config, request, lengths);
    const int64_t peak = device.is_cuda() ? memory::peak_allocated_bytes(device) : plan.total_bytes();
    const Ceilings rates = measure_ceilings(ctx, load.dtype, load.fp8);
    const double ms = times.ms;
    const Checkpointing checkpointing = plan.request().sizes.checkpointing;
    const StepOperations operations = count_operations(spec, lengths, checkpointing.keep);
    const double floor_ms = 1000 * (operations.base / rates.base + (operations.head + operations.attention) / rates.compute);
    const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    const nlohmann::ordered_json result{
        {"bench", "step"}, {"device", describe_device(device)}, {"model", loaded.config.model.path}, {"base", plan.base_description()},
        {"dtype", name_of(loaded.config.model.dtype)}, {"r", load.lora ? load.lora->r : 0}, {"compute_dtype", load.fp8 ? "fp8" : name_of(loaded.config.model.dtype)}, {"batch", batch}, {"seq", seq},
        {"min_seq", request.min_seq}, {"tokens", tokens},
        {"gradient_checkpointing", name_of(checkpointing)}, {"weight_cache", plan.request().weight_cache && device.is_cuda()},
        {"deterministic", loaded.config.training.deterministic}, {"host_gib", gib(plan.host().total_bytes())}, {"steps", request.steps}, {"step_ms", ms},
        {"tokens_per_second", 1000.0 * static_cast<double>(tokens) / ms}, {"peak_gib", gib(peak)},
        {"planned_gib", gib(plan.total_bytes())}, {"gemm_ceiling_tflops", rates.compute / 1e12}, {"base_gemm_ceiling_tflops", rates.base / 1e12}, {"floor_ms", floor_ms}, {"share_of_floor", floor_ms / ms},
        {"loss", times.loss}, {"skipped", times.skipped}};
    if (request.json) {
        std::cout << result.dump() << std::endl;
        return;
    }
    std::cout << result.dump(2) << std::endl;
}

}  // namespace

void run_bench(const LoadedConfig& loaded, const BenchRequest& asked) {
    BenchRequest request = asked;
    if (request.batch == 0) request.batch = loaded.config.training.per_device_train_batch_size;
    if (request.seq == 0) request.seq = loaded.config.model.max_seq_length;
    switch (request.what) {
        case BenchSubject::step: return bench_step(loaded, request);
        case BenchSubject::ops: return bench_ops(loaded, request);
        case BenchSubject::gemm: return bench_gemm(loaded, request);
        case BenchSubject::nf4: return bench_nf4(loaded, request);
    }
}

}  // namespace unsloth::train
