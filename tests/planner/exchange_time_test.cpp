// What ranks that share a step exchange: against bytes counted by hand, and what the rate between them changes.
#include "unsloth/planner/exchange_time.h"

#include <gtest/gtest.h>

#include "unsloth/formats/shapes.h"
#include "unsloth/spec/slice.h"

namespace unsloth::planner {
namespace {

const spec::LayerPlan everything{spec::Keep::everything}, thrifty{spec::Keep::input};

/// Llama-3.1-8B, so many ranks of a kind.
StepWork work_of(int64_t tokens, int64_t longest, const Sharing& sharing) {
    StepWork work;
    const spec::ModelSpec whole = formats::builtin_shape("llama-3.1-8b");
    work.model = spec::slice(whole, {0, static_cast<int>(sharing.tp)});
    work.sharing = sharing;
    work.tokens = work.head_rows = tokens;
    work.longest = longest;
    work.in_4bit = true;
    work.summed_parameters = work.trained_parameters = 42'000'000;
    return work;
}

/// A card on which each exchange takes as many ms as it has GB.
Card counting() {
    Card card = find_card("H200");
    card.peer = 1000;
    card.peer_us = 1e-9;
    card.copy = 1e12;
    return card;
}

TEST(ExchangeTime, CommunicatorsTakeMemoryByTheirRanksAndLinks) {
    constexpr int64_t mib = 1 << 20;
    const Card h200 = find_card("H200"), a100 = find_card("A100"), rtx = find_card("RTX 4090");
    EXPECT_EQ(communicator_bytes(h200, {}), 0);
    const int64_t pair = communicator_bytes(a100, {2}), four = communicator_bytes(a100, {4});
    EXPECT_GE(pair, 544 * mib);  // as was measured elsewhere
    EXPECT_GE(four, 688 * mib);
    EXPECT_LT(four, 1024 * mib);
    EXPECT_EQ(communicator_bytes(h200, {2, 2, 8}), 2 * pair + communicator_bytes(h200, {8}));
    EXPECT_EQ(communicator_bytes(h200, {8}) - communicator_bytes(a100, {8}), 32 * 8 * 2 * mib);  // NVLS
    EXPECT_LT(communicator_bytes(rtx, {8}), 100 * mib);
}

TEST(ExchangeTime, CountsTheBytesOfEachKindOfRanks) {
    const Card card = counting();
    const double stream = 16384 * 4096 * 2 / 1e9, half = 0.5;  // GB; of two ranks' each moves half
    const StepWork alone = work_of(16384, 2048, {});
    EXPECT_EQ(layer_exchange(card, alone, thrifty, 1).backward, 0);
    EXPECT_EQ(step_exchange_ms(card, alone), 0);

    const StepWork tp = work_of(16384, 2048, {.ranks = 2, .tp = 2, .summed = 2});
    EXPECT_NEAR(layer_exchange(card, tp, everything, 1).forward, 4 * half * stream, 1e-6);
    EXPECT_NEAR(layer_exchange(card, tp, everything, 1).backward, 4 * half * stream, 1e-6);
    EXPECT_NEAR(layer_exchange(card, tp, thrifty, 1).backward, 7 * half * stream, 1e-6) << "what is made again";
    EXPECT_NEAR(head_exchange_ms(card, tp), 3 * half * stream, 1e-6);
    EXPECT_NEAR(step_exchange_ms(card, tp), 2 * half * 42e6 * 4 / 1e9, 1e-6);

    const double keys = 131072 * 2 * 1024 * 2 / 1e9;  // of the whole row
    const StepWork cp = work_of(65536, 131072, {.ranks = 2, .cp = 2, .summed = 2});
    EXPECT_NEAR(layer_exchange(card, cp, thrifty, 1).forward, half * keys, 1e-6);
    EXPECT_NEAR(layer_exchange(card, cp, thrifty, 1).backward, 2 * half * keys, 1e-6);

    const StepWork pp = work_of(16384, 2048, {.ranks = 2, .stages = 2});
    EXPECT_EQ(layer_exchange(card, pp, thrifty, 1).forward, 0);
    EXPECT_NEAR(border_ms(card, pp), stream, 1e-6);

    StepWork full = work_of(16384, 2048, {.ranks = 4, .summed = 4, .gradients_by_layer = true});
    full.adapters = false;
    full.summed_parameters = 8'030'000'000;
    const double layer = 218.1e6;
    EXPECT_NEAR(layer_exchange(card, full, everything, 1).backward, 4 * layer / 1e9, 1e-3);
    EXPECT_NEAR(step_exchange_ms(card, full), 2 * 8.03, 1e-6) << "values, from the ranks that updated them";
    full.sharing.values_by_layer = true;
    EXPECT_NEAR(layer_exchange(card, full, everything, 1).forward, 2 * layer / 1e9, 1e-3);
    EXPECT_NEAR(layer_exchange(card, full, everything, 1).backward, 6 * layer / 1e9, 1e-3);
    EXPECT_EQ(step_exchange_ms(card, full), 0);

    const StepWork peers = work_of(16384, 2048, {.ranks = 4, .summed = 4, .peers = 4});
    EXPECT_NEAR(layer_exchange(card, peers, everything, 1).copied, 0.75 * 0.516 * layer / 1e9, 1e-3);
    EXPECT_EQ(layer_exchange(card, peers, everything, 1).forward, 0);
}

double step_ms(const Card& card, const StepWork& work, const spec::LayerPlan& layer) {
    const StepTime time(card, work);
    const auto layers = static_cast<double>(work.model.num_layers) / static_cast<double>(work.sharing.stages);
    return time.step_ms(layers * time.layer(layer, {}, 1).both());
}

TEST(ExchangeTime, PredictsWhatWasMeasuredOnTwoCards) {
    // docs/performance/several-gpus.md, bench scaling on two H200s
    const Card card = find_card("H200");
    const spec::LayerPlan cached{spec::Keep::everything, spec::Place::device, true};
    const StepWork alone = work_of(16384, 2048, {});
    EXPECT_NEAR(step_ms(card, alone, cached) / 895.1, 1, 0.05);
    EXPECT_NEAR(step_ms(card, work_of(16384, 2048, {.ranks = 2, .tp = 2, .summed = 2}), cached) / 530.5, 1, 0.05);
    const double together = step_ms(card, work_of(16384, 2048, {.ranks = 2, .summed = 2}), cached);
    EXPECT_NEAR(together / step_ms(card, alone, cached), 922.2 / 920.5, 0.002);
}

TEST(ExchangeTime, ChunksOfRowsThatAreCutEvenlyAreAsFastAsRows) {
    const Card card = find_card("H200");
    const double row = step_ms(card, work_of(131072, 131072, {}), everything);
    const Sharing two{.ranks = 2, .cp = 2, .summed = 2};
    EXPECT_NEAR(2 * step_ms(card, work_of(65536, 131072, two), everything) / row, 1, 0.02);
    EXPECT_GT(2 * step_ms(card, work_of(65535, 131070, two), everything) / row, 1.15);  // by cuDNN's packed form
}

TEST(ExchangeTime, HalfTheRateBetweenCardsCostsWhatGoesOverIt) {
    Card slow = find_card("H200");
    slow.peer /= 2;
    const Card card = find_card("H200");
    const auto more = [&](const StepWork& work) {
        return step_ms(slow, work, everything) / step_ms(card, work, everything) - 1;
    };
    EXPECT_EQ(more(work_of(16384, 2048, {})), 0);
    EXPECT_GT(more(work_of(16384, 2048, {.ranks = 2, .tp = 2, .summed = 2})), 0.08);
    const double dp = more(work_of(16384, 2048, {.ranks = 2, .summed = 2}));
    EXPECT_GT(dp, 0);
    EXPECT_LT(dp, 0.002);
    EXPECT_LT(more(work_of(65536, 131072, {.ranks = 2, .cp = 2, .summed = 2})), 0.01);
}

TEST(ExchangeTime, APipelineWaitsForItsOtherStages) {
    Card card = find_card("H200");
    card.peer = 1e9;
    card.peer_us = 1e-9;
    StepWork stage = work_of(2048, 2048, {.ranks = 2, .stages = 2});
    stage.has_head = false;
    stage.trained_parameters = stage.summed_parameters = 0;
    StepWork whole = stage;
    whole.sharing = {};
    for (const int64_t micro_batches : {1, 2, 8, 32}) {
        stage.micro_batches = whole.micro_batches = micro_batches;
        const double m = static_cast<double>(micro_batches), busy = step_ms(card, whole, everything) / 2;
        EXPECT_NEAR(1 - busy / (0.998 * step_ms(card, stage, everything)), 1 / (m + 1), 1e-3) << micro_batches;
        stage.sharing.chunks = 2;
        EXPECT_NEAR(1 - busy / (0.998 * step_ms(card, stage, everything)), 1 / (2 * m + 1), 1e-3) << micro_batches;
        stage.sharing.chunks = 1;
    }
}

}  // namespace
}  // namespace unsloth::planner
