// Model FLOPs against sums that were done by hand.
#include <gtest/gtest.h>

#include "unsloth/spec/model_flops.h"

namespace unsloth::spec {
namespace {

ModelSpec small() {
    ModelSpec model;
    model.hidden_size = 8, model.intermediate_size = 16, model.num_layers = 2;
    model.num_heads = 2, model.num_kv_heads = 1, model.head_dim = 4, model.vocab_size = 32;
    model.layers = {{}, {}};
    return model;
}

// q 64, k 32, v 32, o 64, gate, up and down 128 each.
constexpr double layer = 576, layers = 2 * layer, head = 32 * 8, query = 8;

TEST(ModelFlops, AFrozenBaseWithAdapters) {
    const ModelFlops flops(small(), {.adapter_parameters = 100});
    const std::vector<int32_t> segments = {0, 3, 5};
    const double pairs = 2 * (6 + 3);  // of both layers
    EXPECT_EQ(flops.of(segments, 4), 5 * (4 * layers + 6 * 100) + 4 * 4 * head + 12 * query * pairs);
    EXPECT_EQ(flops.of({}, 0), 0);
}

TEST(ModelFlops, AllWeightsTrained) {
    const ModelFlops flops(small(), {.layers = true, .head = true});
    const std::vector<int32_t> segments = {0, 1};
    EXPECT_EQ(flops.of(segments, 0), 6 * layers + 12 * query * 2);
    EXPECT_EQ(flops.of(segments, 1) - flops.of(segments, 0), 6 * head);
}

TEST(ModelFlops, AWindowBoundsPairs) {
    ModelSpec model = small();
    model.layers = {{}, {.window = 2}};
    const std::vector<int32_t> segments = {0, 5};
    // 1 + 2 + 3 + 4 + 5 in the first layer, 1 + 2 + 2 + 2 + 2 in the second.
    EXPECT_EQ(ModelFlops(model, {}).of(segments, 0), 5 * 4 * layers + 12 * query * (15 + 9));
}

// Of four chunks of a sequence the first and the last, or those between, as context-parallel ranks have them.
TEST(ModelFlops, AGatedDeltaNetHasStatesAndNoPairs) {
    ModelSpec model = small();
    model.delta = {.key_heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 4, .taps = 4};
    model.layers = {{}, {.delta = true}};
    using enum Projection;
    model.linears.insert(model.linears.begin(), {delta_qkv, delta_z, delta_b, delta_a, delta_out});
    const std::vector<int32_t> segments = {0, 5};
    const double net = (14 + 8 + 2 + 2 + 8) * 8 + 3 * 128, states = 3 * 2 * 3 * 4;
    EXPECT_EQ(ModelFlops(model, {}).of(segments, 0), 5 * (4 * (layer + net) + 6 * states) + 12 * query * 15);
}

TEST(ModelFlops, ChunksSeeWhatStandsBeforeThem) {
    ModelSpec model = small();
    model.layers = {{}, {.window = 3}};
    const ModelFlops flops(model, {});
    const std::vector<int32_t> whole = {0, 8}, chunks = {0, 2, 4}, outer = {0, 6}, inner = {2, 4};
    EXPECT_EQ(flops.of(chunks, 1, outer) + flops.of(chunks, 2, inner), flops.of(whole, 3));
    EXPECT_EQ(flops.of(chunks, 0, outer) - flops.of(chunks, 0, inner), 12 * query * (1 + 2 + 2 * 3 - 4 * 3));
}

}  // namespace
}  // namespace unsloth::spec
