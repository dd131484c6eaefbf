// `bench step`: the training step on random tokens, against this device's measured ceilings.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "bench/comm.h"
#include "bench/gemm.h"
#include "bench/generate.h"
#include "bench/grpo.h"
#include "bench/model.h"
#include "bench/nf4.h"
#include "bench/ops.h"
#include "bench/scaling.h"
#include "unsloth/bench/bench.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/session/session.h"

namespace unsloth::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Operations that a step does, in multiply-adds times two: base products (forward, with what of it is run again, and
/// dx), attention (causal: half; backward 2.5 times the forward), lm_head forward and dx.
struct StepOperations {
    double forward = 0, dx = 0, head = 0, attention = 0;
};

/// `features`: of a row's images, which layers that cross read in place of its tokens. They get no gradient.
StepOperations count_operations(const spec::ModelSpec& spec, const std::vector<int64_t>& lengths,
                                const spec::RunPlan& run, int64_t features) {
    double tokens = 0, pairs = 0;
    for (const int64_t length : lengths) {
        tokens += static_cast<double>(length);
        pairs += static_cast<double>(length) * static_cast<double>(length) / 2;
    }
    const auto weights = [&](std::initializer_list<spec::Projection> projections) {
        double sum = 0;
        for (const spec::Projection p : projections)
            sum += static_cast<double>(spec.out_features(p) * spec.in_features(p));
        return sum;
    };
    const double q = weights({spec::Projection::q}), kv = weights({spec::Projection::k, spec::Projection::v}),
                 o = weights({spec::Projection::o});
    const auto seen = static_cast<double>(features);  // of each token, if layers cross
    const double all_seen = seen * static_cast<double>(lengths.size());
    const double down = static_cast<double>(spec.hidden_size) * spec.active_intermediate_size(), gate_up = 2 * down;
    double of_delta_in = 0, of_delta_out = 0, rule = 0;  // rule: of a token's state, once forward
    if (spec.delta) {
        of_delta_in = weights({spec::Projection::delta_qkv, spec::Projection::delta_z, spec::Projection::delta_b,
                               spec::Projection::delta_a});
        of_delta_out = weights({spec::Projection::delta_out});
        rule = 6 * static_cast<double>(spec.delta->values() * spec.delta->key_dim);
    }
    double forward = 0, dx = 0, attentions = 0, crossing = 0, crossed = 0, rules = 0;
    for (std::size_t i = 0; i < run.layers.size(); ++i) {
        const spec::LayerPlan& layer = run.layers[i];
        const spec::LayerSteps again = spec::recompute_of(layer.keep);
        const bool crosses = spec.crosses(static_cast<int64_t>(i));
        if (crosses && features == 0) continue;
        const bool is_delta = spec.has_delta(static_cast<int64_t>(i));
        const double qkv = is_delta ? of_delta_in : crosses ? q : q + kv, out = is_delta ? of_delta_out : o;
        dx += qkv + out + gate_up + down;
        if (crosses) {
            crossing += (again.qkv ? 2 : 1) * kv;
            crossed += 3.5 + (again.attention ? 1 : 0);
        }
        forward +=
            qkv + out + gate_up + down + (again.qkv ? qkv : 0) + (again.mid ? out : 0) + (again.gate_up ? gate_up : 0);
        if (is_delta)
            rules += 3 + (again.attention ? 1 : 0);
        else if (!crosses)
            attentions += 3.5 + (again.attention ? 1 : 0);
    }
    const double head = 2.0 * static_cast<double>(spec.vocab_size * spec.hidden_size);
    const double scores = 4 * static_cast<double>(spec.q_size());
    return {2 * (tokens * forward + all_seen * crossing), 2 * tokens * dx, 2 * tokens * head,
            scores * (pairs * attentions + tokens * seen * crossed) + tokens * rule * rules};
}

/// The rate of an n³ product on this device, in operations per second: of the second half of a stretch of them without
/// a pause, as a step's are. A card at its power limit then has the clock that they leave it; a few of them after a
/// pause run at any clock between that one and the highest.
double measure_rate(ops::Context& ctx, int64_t n, const std::function<void()>& multiply) {
    const double half = ctx.is_cuda() ? 0.4 : 0.02;  // seconds
    const auto seconds_of = [&](int calls) {
        synchronize(ctx);
        const auto start = Clock::now();
        for (int i = 0; i < calls; ++i) multiply();
        synchronize(ctx);
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    seconds_of(1);  // loads the kernel
    const int calls = std::clamp(static_cast<int>(half / seconds_of(1)), 3, 1000);
    seconds_of(calls);
    return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) * calls / seconds_of(calls);
}

/// What large products reach here: of the compute type, and of the base's in 8 bit, if there are any.
struct Ceilings {
    double compute = 0, base = 0;
};

Ceilings measure_ceilings(ops::Context& ctx, at::ScalarType dtype, spec::Codes kind) {
    const int64_t n = ctx.is_cuda() ? 8192 : 1024;
    const auto options = at::TensorOptions().dtype(dtype).device(ctx.device());
    const at::Tensor a = at::randn({n, n}, options), b = at::randn({n, n}, options), c = at::empty({n, n}, options);
    Ceilings rates;
    rates.compute = rates.base =
        measure_rate(ctx, n, [&] { ops::gemm(ctx, {.a = a, .b = b, .out = c, .transpose_b = true}); });
    if (kind == spec::Codes::none) return rates;
    const at::ScalarType type = ops::type_of(kind);
    const ops::CodedMatrix scratch{at::empty({n * n}, options.dtype(at::kByte)),
                                   at::empty({ops::scales_of(kind, n, n)}, options.dtype(at::kFloat))},
        a8 = ops::coded_view(scratch, n, n, type),
        b8{at::empty({n, n}, options.dtype(type)), at::empty({n}, options.dtype(at::kFloat)),
           kind == spec::Codes::int8 ? at::empty({n}, options.dtype(at::kBFloat16)) : at::Tensor()};
    ops::quantize_rows(ctx, a, a8);
    ops::quantize_rows(ctx, b, b8);
    rates.base = measure_rate(ctx, n, [&] { ops::gemm_coded(ctx, {.x = a8, .w = b8, .out = c}); });
    return rates;
}

/// Disk rates, where layers are on the disk: what the steps read a second, what reading alone reaches just after
/// them, and how much of it came from the page cache.
void add_disk_rates(const model::Model& model, weights::DiskStream::Counts read, double seconds,
                    nlohmann::ordered_json& result) {
    const weights::LayerPrefetcher* const images = model.parts().network.weight_provider->images();
    if (images == nullptr || images->disk() == nullptr || seconds <= 0) return;
    const auto begin = Clock::now();
    const weights::DiskStream::Counts alone =
        images->disk()->read_alone(images->packed_layers_on_disk(), std::chrono::seconds(5));
    const double alone_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const double rate = static_cast<double>(read.bytes) / seconds,
                 ceiling = static_cast<double>(alone.bytes) / alone_seconds;
    const auto share = [](int64_t part, int64_t of) {
        return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0;
    };
    result["disk_gb_per_s"] = rate / 1e9;
    result["disk_ceiling_gb_per_s"] = ceiling / 1e9;
    result["share_of_disk"] = rate / ceiling;
    result["from_page_cache"] = share(read.cached, read.bytes);
    result["ceiling_from_page_cache"] = share(alone.cached, alone.bytes);
}

/// Results come at the end alone, which may be an hour away.
void say_what_comes(const engine_api::BenchRequest& request, const std::string& keep, int64_t warmup,
                    double predicted_ms) {
    std::string when;
    if (predicted_ms > 0)
        when = cat("; predicted are ", std::llround(predicted_ms), " ms a step, ",
                   duration_text(static_cast<double>(warmup + request.steps) * predicted_ms / 1000),
                   " in all (--steps, --warmup)");
    log::info("bench      ", warmup, " steps to warm up, then ", request.steps,
              " that are measured: ", request.accumulate, " x ", request.batch, " x ", request.seq,
              " tokens, gradient_checkpointing ", keep, when);
}

/// The least time of a step at the measured rates, and the towers' part of it, in ms.
struct Floors {
    double all = 0, towers = 0;
};

Floors floors_of(const BenchedModel& benched, const Ceilings& rates, const std::vector<int64_t>& lengths,
                 const RowImages& images, int64_t accumulate) {
    const spec::ModelSpec& spec = benched.spec();
    const model::LoadRequest& load = benched.request();
    const StepOperations operations =
        count_operations(spec, lengths, load.run,
                         images.count > 0 && spec.vision->tiles ? images.count * spec.vision->tiles->features() : 0);
    const auto rate = [&](bool fp8) { return fp8 ? rates.base : rates.compute; };
    const int64_t patches = images.count > 0 ? images.patches(*spec.vision) : 0;
    const double tower = patches > 0 && !images.kept ? static_cast<double>(std::ssize(lengths) * images.count) *
                                                           spec::vision_operations(*spec.vision, patches)
                                                     : 0;
    const double ms = 1000 * static_cast<double>(accumulate);
    return {ms * (operations.forward / rate(forward_coded(load.coded)) + operations.dx / rates.base +
                  operations.head / 2 / rate(forward_coded(load.sizes.head_coded)) +
                  operations.head / 2 / rate(head_dx_codes(load.sizes.head_coded) != spec::Codes::none) +
                  operations.attention / rates.compute + tower / rates.compute),
            ms * tower / rates.compute};
}

weights::DiskStream::Counts disk_counts(const model::Model& model) {
    const weights::LayerPrefetcher* const images = model.parts().network.weight_provider->images();
    return images != nullptr && images->disk() != nullptr ? images->disk()->counts() : weights::DiskStream::Counts{};
}

engine_api::BenchResult bench_step(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request) {
    const int64_t batch = request.batch, seq = request.seq;
    if (request.min_seq > seq)
        throw Error("option.out-of-range", cat("--min_seq ", request.min_seq, " is more than --seq ", seq));
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
    const std::vector<int64_t> lengths = row_lengths(batch, seq, request.min_seq);
    const int64_t tokens = request.accumulate * std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const RowImages images{request.images, request.image_size, request.keep_features};
    BenchedModel benched(loaded, device, lengths, nullptr, request.accumulate, nullptr, images);
    ops::Context& ctx = benched.ctx();
    const spec::ModelSpec& spec = benched.spec();
    const model::LoadRequest& load = benched.request();
    const model::ModelPlan& plan = benched.plan();
    const double predicted_ms =
        device.is_cuda() ? placement::predicted_step_ms(plan, placement::machine_of(device).card, request.accumulate)
                         : 0;
    const int64_t warmup = request.warmup_of(predicted_ms);
    say_what_comes(request, planner::describe_keep(load.run), warmup, predicted_ms);
    StepTimer timer(benched, loaded.config, lengths, nullptr, request.accumulate, nullptr, images);
    timer.run(warmup);
    const weights::DiskStream::Counts before = disk_counts(benched.model());
    const StepTimes times = timer.run(request.steps);
    const weights::DiskStream::Counts after = disk_counts(benched.model());
    if (const std::string& trace = loaded.config.logging.profile; !trace.empty())
        ops::profile(ctx, trace, [&] { timer.run(1); });
    const int64_t peak = device.is_cuda() ? memory::peak_allocated_bytes(device) : plan.total_bytes();
    const Ceilings rates = measure_ceilings(ctx, load.dtype, dx_codes(load.coded));
    const double ms = times.ms;
    const auto cached = std::count_if(load.run.layers.begin(), load.run.layers.end(),
                                      [](const spec::LayerPlan& layer) { return layer.cached; });
    const Floors floors = floors_of(benched, rates, lengths, images, request.accumulate);
    const std::string places = placement::describe_places(plan);
    const char* const computes = any(load.coded) ? name_of(load.coded) : name_of(loaded.config.model.dtype);
    const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    nlohmann::ordered_json result{{"bench", "step"},
                                  {"device", memory::describe_device(device)},
                                  {"model", loaded.config.model.path},
                                  {"base", plan.base_description()},
                                  {"dtype", name_of(loaded.config.model.dtype)},
                                  {"r", load.lora ? load.lora->r : 0},
                                  {"compute_dtype", computes},
                                  {"batch", batch},
                                  {"seq", seq},
                                  {"min_seq", request.min_seq},
                                  {"accumulate", request.accumulate},
                                  {"images", batch * images.count},
                                  {"patches_each", images.count > 0 ? images.patches(*spec.vision) : 0},
                                  {"kept_features", images.kept},
                                  {"kept_features_mib", static_cast<double>(load.kept_bytes) / (1 << 20)},
                                  {"tower_floor_ms", floors.towers},
                                  {"in_flight", load.run.in_flight},
                                  {"tokens", tokens},
                                  {"gradient_checkpointing", planner::describe_keep(load.run)},
                                  {"weight_cache", cached > 0 && device.is_cuda()},
                                  {"cached_layers", device.is_cuda() ? cached : 0},
                                  {"weights_at", places.empty() ? "the device" : places},
                                  {"deterministic", loaded.config.training.deterministic},
                                  {"resident_gib", gib(plan.resident().total_bytes())},
                                  {"host_gib", gib(plan.host_bytes())},
                                  {"steps", request.steps},
                                  {"step_ms", ms},
                                  {"predicted_step_ms", predicted_ms},
                                  {"tokens_per_second", 1000.0 * static_cast<double>(tokens) / ms},
                                  {"peak_gib", gib(peak)},
                                  {"planned_gib", gib(plan.total_bytes())},
                                  {"gemm_ceiling_tflops", rates.compute / 1e12},
                                  {"base_gemm_ceiling_tflops", rates.base / 1e12},
                                  {"floor_ms", floors.all},
                                  {"share_of_floor", floors.all / ms},
                                  {"loss", times.loss},
                                  {"skipped", times.skipped}};
    add_disk_rates(benched.model(), {after.bytes - before.bytes, after.cached - before.cached},
                   ms * static_cast<double>(request.steps) / 1000, result);
    if (request.prints) std::cout << (request.json ? result.dump() : result.dump(2)) << std::endl;
    engine_api::BenchResult summary;
    if (device.is_cuda()) summary.untuned = placement::tuned_products(*load.kernels, plan).untuned;
    summary.figures = {{"", 1000.0 * static_cast<double>(tokens) / ms, "tokens/s", floors.all / ms}};
    return summary;
}

}  // namespace

engine_api::BenchResult run_bench(const config::LoadedConfig& loaded, const engine_api::BenchRequest& asked) {
    engine_api::BenchRequest request = asked;
    if (request.batch == 0) request.batch = loaded.config.training.per_device_train_batch_size;
    if (request.seq == 0) request.seq = loaded.config.model.max_seq_length;
    if (request.seq == 0) request.seq = config::ModelOptions{}.max_seq_length;
    engine_api::BenchResult result;
    switch (request.what) {
        case engine_api::BenchSubject::step:
            result = bench_step(loaded, request);
            break;
        case engine_api::BenchSubject::ops:
            result.figures = bench_ops(loaded, request);
            break;
        case engine_api::BenchSubject::gemm:
            bench_gemm(loaded, request);
            return {};
        case engine_api::BenchSubject::nf4:
            bench_nf4(loaded, request);
            return {};
        case engine_api::BenchSubject::scaling:
            bench_scaling(loaded, request);
            return {};
        case engine_api::BenchSubject::comm:
            bench_comm(loaded, request);
            return {};
        case engine_api::BenchSubject::generate:
            result.figures = bench_generate(loaded, asked);
            break;
        case engine_api::BenchSubject::grpo:
            result.figures = bench_grpo(loaded, asked);
            break;
    }
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
    result.card = device.is_cuda() ? ops::device_name(device) : "CPU";
    result.pci = ops::pci_address(device);
    return result;
}

}  // namespace unsloth::bench
