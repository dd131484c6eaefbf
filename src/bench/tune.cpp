// `tune`: measures what a step of this configuration runs, GEMM by GEMM, and attention. The candidates
// run in turn in whole steps, and the fastest stays for the products after it: what a product takes by itself says
// little on a card at its power limit, where an algorithm that needs less energy leaves more of it to the rest of the
// step. Times alone, operands from memory, only choose the candidates of cuBLASLt, which has hundreds. Products by
// packed 4-bit weights alone are timed outside: the form of weights is decided while they are loaded.
#include "unsloth/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <numeric>

#include "bench/model.h"
#include "bench/nf4.h"
#include "bench/ops.h"
#include "bench/products.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/gpu_monitor.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/kernel_table.h"
#include "unsloth/placement/memory_use.h"

namespace unsloth::bench {
namespace {

#if UNSLOTH_CUDA
using Clock = std::chrono::steady_clock;
using Operator = spec::KernelOperator;
using Source = spec::KernelSource;

/// The rows to which a choice measured at `m` applies: those with as many tiles of 128, of few rows the upper half.
spec::Interval rows_like(int64_t m) {
    constexpr int64_t tile = 128;
    return {m <= 2 * tile ? m / 2 + 1 : m - tile + 1, m};
}

spec::Interval only(int64_t x) {
    return {x, x};
}

/// What is worth a step: ours, the library's choice, the fastest in rotation; of more of those, the fastest alone.
std::vector<std::size_t> finalists(ops::Context& ctx, ops::GemmTrials& trials, const Product& product) {
    constexpr std::size_t most = 32, in_turn = 3, tried_alone = 12, alone = 4;
    std::vector<std::size_t> result{trials.ours()};
    const auto append_new = [&](std::size_t trial) {
        if (std::find(result.begin(), result.end(), trial) == result.end()) result.push_back(trial);
    };
    std::vector<std::size_t> all(trials.count());
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const int64_t rounds : {1, 3}) {  // all of them shortly, then the best ones again
        const std::vector<double> ns = time_trials(ctx, trials, product, all, rounds);
        std::vector<std::pair<double, std::size_t>> order;
        for (std::size_t i = 0; i < all.size(); ++i) order.emplace_back(ns[i], all[i]);
        std::sort(order.begin(), order.end());
        if (order.size() > most) order.resize(most);
        all.clear();
        for (const auto& [time, trial] : order) all.push_back(trial);
    }
    append_new(trials.first());
    for (std::size_t i = 0; i < std::min(in_turn, all.size()); ++i) append_new(all[i]);
    std::vector<std::pair<double, std::size_t>> by_energy;
    for (std::size_t i = 0; i < std::min(tried_alone, all.size()); ++i)
        by_energy.emplace_back(time_alone(ctx, trials, product, all[i]), all[i]);
    std::sort(by_energy.begin(), by_energy.end());
    for (std::size_t i = 0; i < std::min(alone, by_energy.size()); ++i) append_new(by_energy[i].second);
    return result;
}

/// Settles one product after the other on the benched model's context.
class Tuner {
  public:
    Tuner(BenchedModel& benched, StepTimer& timer, const engine_api::TuneRequest& request)
        : benched_(benched), timer_(timer), request_(request), table_(*benched.ctx().kernels) {
        start_ms_ = step_ms();
        line("as it is", "", start_ms_);
    }

    /// Of candidates for one product the one with the fastest step goes before all choices of the table. They take
    /// turns in rounds, so that all see the same clock; the first stays unless another is faster in each round, and in
    /// the middle one by more than what two times of the same step differ by.
    void settle(const std::string& name, const std::vector<spec::KernelChoice>& candidates) {
        constexpr double noise = 5e-4, hopeless = 1.005;
        constexpr int rounds = 3;
        if (out_of_time(name) || candidates.size() < 2) return;
        std::vector<std::vector<double>> ms(candidates.size());
        for (int round = 0; round < rounds; ++round)
            for (std::size_t i = 0; i < candidates.size(); ++i) {
                if (round > 0 && ms[i][0] > hopeless * ms[0][0]) continue;
                use(&candidates[i]);
                ms[i].push_back(step_ms());
            }
        std::size_t best = 0;
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            line(name, spec::choice_text(candidates[i]), median(ms[i]));
            const bool in_each_round =
                std::equal(ms[i].begin(), ms[i].end(), ms[0].begin(), ms[0].end(), std::less<>());
            if (in_each_round && median(ms[i]) < std::min(median(ms[best]), (1 - noise) * median(ms[0]))) best = i;
        }
        table_.put_first(candidates[best]);
        ++settled_;
        use(nullptr);
    }

    /// Whether the time is over; logs a product that is not begun.
    bool out_of_time(const std::string& name) {
        if (std::chrono::duration<double>(Clock::now() - begin_).count() < request_.seconds) return false;
        log::warning("tune: ", name, " stays as it is: the ", request_.seconds, " s of --seconds are over");
        return true;
    }

    void add(const std::vector<spec::KernelChoice>& choices) {
        for (const spec::KernelChoice& choice : choices) table_.put_first(choice);
    }

    /// The table with all that was settled; `what` was tuned.
    spec::KernelTable result(const std::string& what) {
        const double ms = step_ms();
        line("tuned", "", ms);
        char text[160];
        std::snprintf(text, sizeof text, ": %d products settled by the time of whole steps, %.3f ms before, %.3f after",
                      settled_, start_ms_, ms);
        spec::KernelTable table = table_;
        table.card = ops::kernel_card(benched_.ctx().device());
        table.versions = ops::kernel_versions();
        table.versions.driver = gpu_driver_version();
        table.source =
            cat("unsloth-train tune, ", what, text, table_.source.empty() ? "" : "; the rest: ", table_.source);
        return table;
    }

  private:
    /// The table, and one choice more before all of it.
    void use(const spec::KernelChoice* trial) {
        auto table = std::make_shared<spec::KernelTable>(table_);
        if (table->card.multiprocessors == 0) table->card = ops::kernel_card(benched_.ctx().device());
        if (trial) table->choices.insert(table->choices.begin(), *trial);
        benched_.ctx().kernels = std::move(table);
    }
    double step_ms() {
        timer_.run(1);
        return timer_.run(request_.steps).ms;
    }
    void line(const std::string& name, const std::string& choice, double ms) const {
        std::fprintf(stderr, "%-14s %10.3f ms a step  %s\n", name.c_str(), ms, choice.c_str());
    }

    BenchedModel& benched_;
    StepTimer& timer_;
    const engine_api::TuneRequest& request_;
    spec::KernelTable table_;
    Clock::time_point begin_ = Clock::now();
    double start_ms_ = 0;
    int settled_ = 0;
};

/// The bf16 products: of a layer, but those in 8 bit, and of the head.
void tune_gemms(Tuner& tuner, BenchedModel& benched, const weights::LayerLayout& layout) {
    ops::Context& ctx = benched.ctx();
    const model::LoadRequest& request = benched.request();
    // A product that adds a bias is of another kind than tables hold.
    const auto adds_bias = [&](const std::string& name) {
        return std::ranges::any_of(layout.groups, [&](const weights::MatrixGroup& group) {
            return name == weights::name_of(group.group) &&
                   std::any_of(group.slices.begin(), group.slices.end(),
                               [&](const weights::Slice& s) { return benched.spec().has_bias(s.projection); });
        });
    };
    const auto settle = [&](const Product& product) {
        if (tuner.out_of_time(product.name) || adds_bias(product.name)) return;
        ops::GemmTrials trials(ctx, product.sets[0]);
        std::vector<spec::KernelChoice> candidates;
        for (const std::size_t trial : finalists(ctx, trials, product))
            candidates.push_back(trials.choice(trial, rows_like(product.m()), product.k_base));
        tuner.settle(product.name, candidates);
    };
    if (!forward_coded(request.coded))
        for_each_layer_product(layout, ctx.device(), request.dtype, request.sizes.tokens, [&](const Product& product) {
            if (!dx_coded(request.coded) || !product.name.ends_with(" dx")) settle(product);
        });
    const spec::CodedProducts head = request.sizes.head_coded;
    for_each_head_product(
        benched.spec(), ctx.device(), request.dtype, request.sizes.head_rows, [&](const Product& product) {
            if (product.name.ends_with(" dx") ? head_dx_codes(head) == spec::Codes::none : !forward_coded(head))
                settle(product);
        });
}

/// What runs now for `key`, as a choice for it alone; the library's where the table says nothing.
spec::KernelChoice present(const spec::KernelTable& table, const spec::ProductKey& key, spec::KernelChoice like) {
    const spec::KernelChoice* found = table.find(key);
    like.kernel = found ? found->kernel : Source::library;
    like.parameters = found ? found->parameters : std::vector<int64_t>{};
    return like;
}

void tune_fp8(Tuner& tuner, BenchedModel& benched, const weights::LayerLayout& layout) {
    const model::LoadRequest& request = benched.request();
    const auto settle = [&](const char* name, spec::Codes of_forward, spec::Codes of_dx, int64_t m, int64_t n,
                            int64_t k, int64_t rank) {
        for (const bool forward : {true, false}) {
            if ((forward ? of_forward : of_dx) != spec::Codes::e4m3) continue;
            spec::KernelChoice choice{.op = Operator::gemm_fp8,
                                      .tokens = rows_like(m),
                                      .n = only(forward ? n : k),
                                      .k = only(forward ? k : n),
                                      .rank = only(rank)};
            std::vector<spec::KernelChoice> candidates{choice};
            choice.kernel = Source::sm90;
            for (const int64_t columns : {256, 192, 128}) {
                choice.parameters = {columns};
                candidates.push_back(choice);
            }
            tuner.settle(cat(name, forward ? " fp8" : " dx fp8"), candidates);
        }
    };
    for (const weights::Group g : layout.single_groups())
        settle(name_of(g), forward_codes(request.coded), dx_codes(request.coded), request.sizes.tokens, layout[g].n,
               layout[g].k, layout[g].r);
    const spec::CodedProducts head = request.sizes.head_coded;
    settle("lm_head", forward_codes(head), head_dx_codes(head), request.run.head_tile, benched.spec().vocab_size,
           benched.spec().hidden_size, /*rank=*/0);
}

/// The adapters' LoRA GEMMs.
void tune_thin(Tuner& tuner, BenchedModel& benched, const weights::LayerLayout& layout) {
    const int64_t m = benched.request().sizes.tokens;
    std::vector<spec::KernelChoice> done;
    const auto settle = [&](const std::string& name, const spec::ProductKey& key) {
        const bool u = key.op == Operator::lora_u;
        const spec::KernelChoice choice = present(*benched.ctx().kernels, key,
                                                  {.op = key.op,
                                                   .tokens = rows_like(m),
                                                   .n = u ? spec::Interval{} : only(key.n),
                                                   .k = u ? only(key.k) : spec::Interval{},
                                                   .rank = only(key.rank)});
        if (std::find(done.begin(), done.end(), choice) != done.end()) return;  // qkv's and gate_up's x are alike
        done.push_back(choice);
        std::vector<spec::KernelChoice> candidates{choice};
        for (const Source source : {Source::library, Source::sm90}) {
            candidates.push_back(choice);
            candidates.back().kernel = source;
        }
        candidates.erase(std::find(candidates.begin() + 1, candidates.end(), choice));
        tuner.settle(name, candidates);
    };
    for (const weights::Group g : layout.single_groups()) {
        const weights::MatrixGroup& group = layout[g];
        if (group.r == 0) continue;
        int64_t widest = 0;
        for (const weights::Slice& slice : group.slices) widest = std::max(widest, slice.r);
        settle(cat(name_of(g), " xA"), {.op = Operator::lora_u, .tokens = m, .k = group.k, .rank = group.r});
        settle(cat(name_of(g), " dyB"), {.op = Operator::lora_dy, .tokens = m, .n = group.n, .rank = widest});
    }
}
/// Forward and backward of attention: cuDNN's engines or our own kernels. A batch's choice depends on how long its
/// rows are, and is alike within a factor of two.
void tune_attention(Tuner& tuner, BenchedModel& benched, int64_t longest) {
    const int64_t m = benched.request().sizes.tokens, head_dim = benched.spec().head_dim;
    for (const spec::ProductForm form : {spec::ProductForm::nt, spec::ProductForm::nn}) {
        spec::KernelChoice choice = present(
            *benched.ctx().kernels, {.op = Operator::attention, .form = form, .tokens = m, .n = longest, .k = head_dim},
            {.op = Operator::attention,
             .form = form,
             .tokens = {m / 2 + 1, m},
             .n = {longest / 2 + 1, longest},
             .k = only(head_dim)});
        std::vector<spec::KernelChoice> candidates{choice};
        choice.kernel = choice.kernel == Source::library ? Source::portable : Source::library;
        candidates.push_back(choice);
        tuner.settle(form == spec::ProductForm::nt ? "attention" : "attention dx", candidates);
    }
}
#endif

}  // namespace

void run_tune(const config::LoadedConfig& loaded, const engine_api::TuneRequest& asked) {
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
    if (!device.is_cuda())
        throw Error("device.needs-gpu", cat("tune chooses kernels of a GPU; the device is ", device.str()),
                    "Run it on the machine that trains.");
    if (loaded.config.model.dtype != spec::DType::bf16)
        throw Error("option.unsupported", "tune chooses kernels of bfloat16 products; model.dtype is another type");
#if UNSLOTH_CUDA
    engine_api::TuneRequest request = asked;
    if (request.batch == 0) request.batch = loaded.config.training.per_device_train_batch_size;
    if (request.seq == 0) request.seq = loaded.config.model.max_seq_length;
    if (request.seq == 0) request.seq = config::ModelOptions{}.max_seq_length;
    config::LoadedConfig settings = loaded;
    settings.config.hardware.cuda_graphs = false;  // recorded steps keep the products that they were recorded with
    // The candidates' operands need room in addition to the plan.
    constexpr double share = 0.75, gib = 1 << 30;
    const double budget = static_cast<double>(placement::memory_budget(loaded.config, device).device) / gib;
    settings.config.training.max_memory_gib = share * budget;
    const std::vector<int64_t> lengths = row_lengths(request.batch, request.seq, 0);
    BenchedModel benched(settings, device, lengths);
    StepTimer timer(benched, settings.config, lengths);
    timer.run(2);
    const weights::LayerLayout layout = adapted_layout(loaded, benched.spec());
    Tuner tuner(benched, timer, request);
    tune_fp8(tuner, benched, layout);
    tune_gemms(tuner, benched, layout);
    if (ops::kernel_card(device).compute_capability == 90) tune_thin(tuner, benched, layout);
    tune_attention(tuner, benched, request.seq);
    constexpr int64_t most_packed = 512;
    if (benched.request().sizes.tokens <= most_packed && benched.plan().base_description().starts_with("nf4"))
        tuner.add(nf4_choices(benched.ctx(), layout));
    const std::string text = spec::kernels_text(
        tuner.result(cat(request.batch, " x ", request.seq, " tokens of ", loaded.config.model.path)));
    if (request.out.empty()) {
        std::cout << text << std::flush;
    } else {
        write_file_atomically(request.out, text);
        log::info("wrote ", request.out, "; --hardware.kernels ", request.out, " trains with it");
    }
#endif
}

}  // namespace unsloth::bench
