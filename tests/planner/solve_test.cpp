// The solver against brute force, and what a card's rates change.
#include "unsloth/planner/solve.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "unsloth/formats/shapes.h"
#include "unsloth/planner/run_plan_text.h"

namespace unsloth::planner {
namespace {

constexpr int64_t mib = 1 << 20;

/// A problem whose shared bytes depend on the set of options, as buffers that layers share do.
Problem random_problem(std::mt19937& random, std::size_t options) {
    const auto draw = [&](int64_t low, int64_t high) {
        return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const auto time = [&] { return static_cast<double>(draw(1, 100)) / 10; };
    Problem problem;
    problem.layers = draw(1, 6);
    for (std::size_t i = 0; i < options; ++i) {
        LayerOption option;
        option.plan.keep = static_cast<spec::Keep>(draw(0, 3));
        option.plan.activations_at = draw(0, 1) == 0 ? spec::Place::device : spec::Place::host;
        option.plan.weights_at = draw(0, 3) == 0 ? spec::Place::host : spec::Place::device;
        option.bytes = {draw(-5, 40), draw(0, 20)};
        option.time = {time(), time()};
        problem.options.push_back(option);
    }
    problem.budget = {draw(10, 40 * problem.layers), draw(5, 20 * problem.layers)};
    problem.shared = [](uint64_t used) {
        return spec::MemoryNeed{static_cast<int64_t>(used * 7 % 13), static_cast<int64_t>(used % 3)};
    };
    return problem;
}

double brute_force(const Problem& problem) {
    double best = std::numeric_limits<double>::infinity();
    std::vector<int64_t> counts(problem.options.size());
    const std::function<void(std::size_t, int64_t)> each = [&](std::size_t i, int64_t left) {
        if (i + 1 < counts.size()) {
            for (int64_t n = 0; n <= left; ++n) {
                counts[i] = n;
                each(i + 1, left - n);
            }
            return;
        }
        counts[i] = left;
        uint64_t used = 0;
        spec::MemoryNeed need;
        for (std::size_t o = 0; o < counts.size(); ++o) {
            if (counts[o] > 0) used |= uint64_t{1} << o;
            need.device += counts[o] * problem.options[o].bytes.device;
            need.host += counts[o] * problem.options[o].bytes.host;
        }
        const spec::MemoryNeed shared = problem.shared(used);
        if (need.device + shared.device <= problem.budget.device && need.host + shared.host <= problem.budget.host)
            best = std::min(best, layers_ms(problem.options, counts));
    };
    each(0, problem.layers);
    return best;
}

TEST(Solve, EqualsBruteForce) {
    std::mt19937 random(20);
    int solved = 0;
    for (int trial = 0; trial < 400; ++trial) {
        const Problem problem = random_problem(random, 1 + static_cast<std::size_t>(trial) % 6);
        const double expected = brute_force(problem);
        const std::optional<Solution> found = solve(problem, /*tolerance=*/0);
        ASSERT_EQ(found.has_value(), std::isfinite(expected)) << trial;
        if (!found) continue;
        ++solved;
        EXPECT_NEAR(found->ms, expected, 1e-9 * expected) << trial;
        EXPECT_NEAR(layers_ms(problem.options, found->counts), found->ms, 1e-9 * expected);
        int64_t layers = 0;
        for (const int64_t count : found->counts) layers += count;
        EXPECT_EQ(layers, problem.layers);
    }
    EXPECT_GT(solved, 100);
    EXPECT_LT(solved, 400);
}

/// Llama-3.1-8B, 8 rows of 2048 tokens: ways to keep activations, with what they take on the device and on the host.
Problem llama(const Card& card, int64_t device_mib, int64_t layers = 32) {
    StepWork work;
    work.model = formats::builtin_shape("llama-3.1-8b");
    work.tokens = work.head_rows = 16384;
    work.longest = 2048;
    work.in_4bit = true;
    const StepTime time(card, work);
    const int64_t kept[] = {1490 * mib, 590 * mib, 272 * mib, 134 * mib};
    Problem problem;
    problem.layers = layers;
    for (int keep = 0; keep < 4; ++keep)
        for (const spec::Place place : {spec::Place::device, spec::Place::host})
            for (const bool cached : {false, true}) {
                LayerOption option;
                option.plan = {static_cast<spec::Keep>(keep), place, cached};
                const bool host = place == spec::Place::host;
                option.bytes = {(host ? 8 * mib : kept[keep]) + (cached ? 306 * mib : 0), host ? kept[keep] : 0};
                option.time = time.layer(option.plan, {kept[keep], 0}, 1);
                problem.options.push_back(option);
            }
    problem.budget = {device_mib * mib, int64_t{64} << 30};
    problem.shared = [](uint64_t) { return spec::MemoryNeed{}; };
    return problem;
}

TEST(Solve, TakesEverythingWhereThereIsRoomAndMixesWhereThereIsNot) {
    const Card card = find_card("H200");
    EXPECT_NEAR(static_cast<double>(find_card("A100-SXM4-40GB").memory_bytes), 39.4 * (1 << 30), 0.1 * (1 << 30));
    EXPECT_EQ(find_card("NVIDIA A100 80GB PCIe").memory_bytes, find_card("A100").memory_bytes);
    EXPECT_THROW(find_card("RTX 4090 Laptop"), Error);
    const Problem roomy = llama(card, 100'000);
    const std::vector<spec::LayerPlan> all = arrange(roomy.options, solve(roomy)->counts);
    EXPECT_EQ(all, std::vector<spec::LayerPlan>(32, {spec::Keep::everything, spec::Place::device, true}));

    const Problem small = llama(card, 10'000);
    const std::optional<Solution> found = solve(small);
    const std::vector<spec::LayerPlan> mixed = arrange(small.options, found->counts);
    ASSERT_EQ(mixed.size(), 32U);
    // Of one way alone the fastest that fits is mlp+offload.
    std::vector<int64_t> one(small.options.size());
    for (std::size_t i = 0; i < one.size(); ++i)
        if (small.options[i].plan == spec::LayerPlan{spec::Keep::but_mlp, spec::Place::host, false}) one[i] = 32;
    EXPECT_LT(found->ms, 0.98 * layers_ms(small.options, one));
    bool on_device = false;
    for (const spec::LayerPlan& layer : mixed) {
        on_device = on_device || layer.activations_at == spec::Place::device;
        EXPECT_EQ(layer.activations_at == spec::Place::device, on_device) << "those on the host are the lowest";
    }
}

TEST(Solve, HalfTheLinkIsAnotherPlan) {
    Card card = find_card("H200");
    const Problem fast = llama(card, 10'000);
    card.link /= 2;
    const Problem slow = llama(card, 10'000);
    const std::optional<Solution> with_fast = solve(fast), with_slow = solve(slow);
    EXPECT_NE(arrange(fast.options, with_fast->counts), arrange(slow.options, with_slow->counts));
    const auto moved = [](const Problem& problem, const Solution& solution) {
        double ms = 0;
        for (std::size_t i = 0; i < problem.options.size(); ++i)
            ms += static_cast<double>(solution.counts[i] * problem.options[i].bytes.host);
        return ms;
    };
    EXPECT_LT(moved(slow, *with_slow), moved(fast, *with_fast));
    EXPECT_GT(with_slow->ms, with_fast->ms);
    EXPECT_LT(with_slow->ms, 1.2 * with_fast->ms);
}

TEST(Solve, ManyLayersWithManyOptionsTakeNoTime) {
    const Problem large = llama(find_card("RTX 4090"), 24'000, /*layers=*/126);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(solve(large));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));  // 20 ms where nothing else runs
}

TEST(RunPlanText, SaysAPlanAndReadsItBack) {
    spec::RunPlan run;
    run.layers.assign(3, {spec::Keep::but_mlp, spec::Place::host});
    run.layers.push_back({spec::Keep::everything, spec::Place::device, true});
    run.layers.push_back({spec::Keep::input, spec::Place::device, false, spec::Place::disk});
    run.head_tile = 1024;
    run.in_flight = 2;
    EXPECT_EQ(describe_keep(run), "3 x mlp+offload, 1 x none, 1 x full");
    const std::string text = run_plan_json(run);
    EXPECT_EQ(parse_run_plan(text), run);
    for (const char* broken : {"", "{}", "[]", R"({"layers": [], "head_tile": 1, "in_flight": 1})",
                               R"({"layers": [{"count": 1, "keep": "mlp"}], "head_tile": 1, "in_flight": 1})"})
        EXPECT_FALSE(parse_run_plan(broken)) << broken;
}

}  // namespace
}  // namespace unsloth::planner
