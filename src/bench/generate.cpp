#include "bench/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <random>

#include <nlohmann/json.hpp>

#include "bench/ops.h"
#include "unsloth/core/error.h"
#include "unsloth/generate/chunked_prefill.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/session/generation.h"
#include "unsloth/session/session.h"
#include "unsloth/train/json_number.h"
#include "unsloth/train/run_record.h"

namespace unsloth::bench {
namespace {

using Clock = std::chrono::steady_clock;
using train::seconds_since;

/// The bytes of weights that a pass reads: the layers', in whatever memory they are, the adapters, and lm_head.
int64_t weight_bytes(const model::Model& model) {
    int64_t layers = 0, adapters = 0;
    const auto add = [&](const memory::Plan& plan) {
        for (const memory::Entry& entry : plan.entries()) {
            if (entry.group == "layer weights" || entry.group == "base weights") layers += entry.bytes;
            if (entry.group == "adapters") adapters += entry.bytes;
        }
    };
    add(model.parts().resident_memory->plan());
    if (model.parts().common_memory != nullptr) add(model.parts().common_memory->plan());
    if (model.parts().host_memory != nullptr) add(model.parts().host_memory->plan());
    const formats::Checkpoint& checkpoint = model.parts().network.file->checkpoint;
    if (layers == 0)  // the CPU reads them where the file is mapped
        for (const std::string& name : checkpoint.names())
            if (name.starts_with("model.layers.")) layers += static_cast<int64_t>(checkpoint.at(name).data.size());
    const spec::ModelSpec& spec = model.spec();
    return layers + adapters +
           spec.vocab_size * spec.hidden_size * static_cast<int64_t>(c10::elementSize(model.dtype()));
}

/// Milliseconds of each region of a pass, by name. The device is kept at work until the whole pass is issued, so that
/// what a region takes is the device's time, not the host's.
class PassProfile {
  public:
    explicit PassProfile(ops::Context& ctx) : ctx_(ctx), profiler_(ctx) {
        const auto options = at::TensorOptions(at::kByte).device(ctx.device());
        const int64_t bytes = ctx.is_cuda() ? int64_t{1} << 30 : 1;
        const at::Tensor from = at::ones({bytes}, options), to = at::empty_like(from);
        for (int copy = 0; copy < (ctx.is_cuda() ? 60 : 1); ++copy) to.copy_(from);
        ctx_.profiler = &profiler_;
    }
    ~PassProfile() { ctx_.profiler = nullptr; }
    PassProfile(const PassProfile&) = delete;
    PassProfile& operator=(const PassProfile&) = delete;

    nlohmann::ordered_json take() {
        std::map<std::string, double> ms;
        const std::vector<ops::Span> spans = profiler_.take();
        std::vector<double> inside(spans.size());
        for (const ops::Span& span : spans)
            if (span.parent >= 0) inside[static_cast<std::size_t>(span.parent)] += span.end_us - span.begin_us;
        for (std::size_t i = 0; i < spans.size(); ++i)
            ms[spans[i].name] += (spans[i].end_us - spans[i].begin_us - inside[i]) / 1000;
        nlohmann::ordered_json result;
        for (const auto& [name, value] : ms) result[name] = std::round(1000 * value) / 1000;
        return result;
    }

  private:
    ops::Context& ctx_;
    ops::Profiler profiler_;
};

struct Measured {
    double prompts = 0;              ///< seconds until every row has its first token
    double all = 0;                  ///< until the last answer is there
    double decode = 0;               ///< of the passes in which all rows decode
    int64_t passes = 0;              ///< these
    nlohmann::ordered_json regions;  ///< of a pass after these, see PassProfile; a region without those within it
};

/// `row`: rows have the adapters in turn, where there are several.
generate::Request request_of(const model::Model& model, std::mt19937& random, int64_t row, int64_t prompt,
                             int64_t answer) {
    generate::Request request{.prompt = {}, .max_new_tokens = answer};
    if (const int64_t adapters = model.sizes().adapters; adapters > 0)
        request.adapter = static_cast<int32_t>(row % adapters);
    for (int64_t t = 0; t < prompt; ++t)
        request.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(model.spec().vocab_size)));
    return request;
}

Measured measure(ops::Context& ctx, model::Model& model, int64_t rows, int64_t prompt, int64_t answer, uint32_t seed,
                 bool profiles = false) {
    generate::DecoderOptions options{.rows = rows};
    options.prefill_tokens = model.sizes().tokens;
    generate::Decoder decoder(ctx, model, options);
    std::mt19937 random(seed);
    for (int64_t row = 0; row < rows; ++row) {  // requests are numbered from 0
        decoder.add(request_of(model, random, row, prompt, answer));
    }
    int64_t begun = 0, ended = 0;
    std::vector<bool> has_token(static_cast<std::size_t>(rows));
    const auto see = [&](int64_t number, int32_t) {
        auto has = has_token[static_cast<std::size_t>(number)];
        begun += has ? 0 : 1;
        has = true;
        return true;
    };
    const auto end = [&](int64_t, const generate::Completion&) { ++ended; };
    Measured measured;
    const auto start = Clock::now();
    while (begun < rows && decoder.step(see, end)) {
    }
    measured.prompts = seconds_since(start);
    const auto decoding = Clock::now();
    // The profiled pass is issued kernel by kernel: it is no part of a measurement.
    const int64_t most = profiles ? answer / 2 : answer;
    while (ended == 0 && measured.passes < most && decoder.step(see, end)) ++measured.passes;
    measured.decode = seconds_since(decoding);
    if (profiles && ended == 0) {
        PassProfile profile(ctx);
        decoder.step(see, end);
        measured.regions = profile.take();
    }
    while (decoder.step(see, end)) {
    }
    measured.all = seconds_since(start);
    return measured;
}

/// Milliseconds between tokens of decoding rows: the median, and the longest during the prefill of another prompt.
/// nullopt: the answers ended before.
struct Delay {
    std::optional<double> median_ms, longest_ms;
};

Delay delay_by_prompt(ops::Context& ctx, model::Model& model, int64_t rows, int64_t prompt, int64_t answer,
                      const std::shared_ptr<generate::StepLatencyModel>& times) {
    constexpr std::size_t alone = 24;
    generate::DecoderOptions options{.rows = rows + 1, .prefill_policy = generate::chunked_prefill_policy(times)};
    options.on_pass = [&](const generate::PassWork& pass, double ms) { times->observe(pass, ms); };
    generate::Decoder decoder(ctx, model, options);
    std::mt19937 random(5);
    for (int64_t row = 0; row < rows; ++row) decoder.add(request_of(model, random, row, prompt, answer));
    int64_t begun = 0, ended = 0;
    std::vector<bool> has_token(static_cast<std::size_t>(rows + 1));
    const auto see = [&](int64_t number, int32_t) {
        auto has = has_token[static_cast<std::size_t>(number)];
        begun += has ? 0 : 1;
        has = true;
        return true;
    };
    const auto end = [&](int64_t, const generate::Completion&) { ++ended; };
    const auto timed = [&] {
        const auto begin = Clock::now();
        decoder.step(see, end);
        return 1000 * seconds_since(begin);
    };
    while (begun < rows) timed();
    std::vector<double> ms;
    while (ms.size() < alone && ended < rows) ms.push_back(timed());
    Delay delay;
    if (!ms.empty()) delay.median_ms = median(ms);
    decoder.add(request_of(model, random, rows, prompt + answer - 1, 1));
    // Once all have ended, no row waits for the rest of the prompt, which may be prefilled at once.
    while (begun <= rows && ended < rows) delay.longest_ms = std::max(delay.longest_ms.value_or(0), timed());
    return delay;
}

}  // namespace

std::vector<engine_api::BenchFigure> bench_generate(const config::LoadedConfig& given,
                                                    const engine_api::BenchRequest& request) {
    const config::LoadedConfig loaded = session::with_base(given, request.adapters);
    const std::vector<int64_t> all_rows =
        request.batch > 0 ? std::vector<int64_t>{request.batch} : std::vector<int64_t>{1, 64, 256};
    const int64_t most = *std::max_element(all_rows.begin(), all_rows.end());
    const int64_t prompt = request.seq > 0 ? request.seq : 256, answer = request.new_tokens, context = prompt + answer;
    const session::OpenedModel opened = session::open_model(loaded.config);
    placement::CacheSize cache = placement::cache_for(most + 1, context);  // + 1: a prompt joins the rows
    cache.shrinks = false;                                                 // what is asked is measured, or refused
    cache.in_8_bit = request.kv_cache_dtype == engine_api::KvCacheDtype::fp8;
    const int64_t prefill_rows = generate::ChunkedPrefillBounds{}.most;  // its tokens, a segment each
    const session::LoadedModel benched = session::load_for_inference(
        loaded, opened,
        std::max(std::min(engine_api::GenerateRequest{}.max_batch_tokens, most * prompt), most + 1 + prefill_rows),
        most + 1 + prefill_rows, most + 1, /*fewest_tokens=*/1, cache, request.adapters);
    ops::Context& ctx = *benched.ctx;
    model::Model& model = *benched.model;
    const double rate = copy_rate(ctx);
    const std::shared_ptr<generate::StepLatencyModel> times =
        session::step_latency_model(ctx.device(), loaded.config, opened);
    std::vector<engine_api::BenchFigure> figures;
    for (const int64_t rows : all_rows) {
        measure(ctx, model, rows, prompt, std::min<int64_t>(answer, 16), 1);  // libraries choose algorithms
        const Measured m = measure(ctx, model, rows, prompt, answer, 2);
        const Measured profiled =
            measure(ctx, model, rows, prompt, std::min<int64_t>(answer, 64), 3, /*profiles=*/true);
        for (int time = 0; time < 5; ++time)  // shapes are met, recorded when they come again, and timed then
            delay_by_prompt(ctx, model, rows, prompt, answer, times);
        const Delay delay = delay_by_prompt(ctx, model, rows, prompt, answer, times);
        std::optional<double> times_as_long;
        if (delay.longest_ms) times_as_long = *delay.longest_ms / *delay.median_ms;
        const int64_t keys =
            rows * (prompt + answer / 2) * generate::cache_bytes_per_token(model.spec(), model.dtype(), cache.in_8_bit);
        const double ms = 1000 * m.decode / static_cast<double>(std::max<int64_t>(1, m.passes));
        const double ceiling = 1000 * static_cast<double>(weight_bytes(model) + keys) / rate;
        const nlohmann::ordered_json result{
            {"bench", "generate"},
            {"device", memory::describe_device(ctx.device())},
            {"model", loaded.config.model.path},
            {"rows", rows},
            {"adapters", model.sizes().adapters},
            {"kv_cache_dtype", cache.in_8_bit ? "fp8" : "auto"},
            {"prompt_tokens", prompt},
            {"new_tokens", answer},
            {"prompt_tokens_per_second", static_cast<double>(rows * prompt) / m.prompts},
            {"tokens_per_second", static_cast<double>(rows * answer) / m.all},
            {"decode_tokens_per_second", 1000 * static_cast<double>(rows) / ms},
            {"pass_ms", ms},
            {"weights_gb", static_cast<double>(weight_bytes(model)) / 1e9},
            {"keys_gb", static_cast<double>(keys) / 1e9},
            {"copy_gb_per_s", rate / 1e9},
            {"ceiling_ms", ceiling},
            {"share_of_ceiling", ceiling / ms},
            {"ms_between_tokens", train::number(delay.median_ms)},
            {"ms_beside_a_prompt", train::number(delay.longest_ms)},
            {"times_as_long", train::number(times_as_long)},
            {"tokens_beside", generate::chunked_prefill_policy(times)(rows, rows * prompt, 0).tokens},
            {"regions_ms", profiled.regions}};
        if (request.prints) std::cout << (request.json ? result.dump() : result.dump(2)) << std::endl;
        figures.push_back(
            {cat(rows, rows == 1 ? " row" : " rows"), 1000 * static_cast<double>(rows) / ms, "tokens/s", ceiling / ms});
    }
    return figures;
}

}  // namespace unsloth::bench
