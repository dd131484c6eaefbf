// Layers that lie ready beside layers that are expanded in turn: whatever is asked for next, its weights and its
// adapters are there.
#include "unsloth/weights/weight_provider.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth::weights {
namespace {

spec::ModelSpec small_spec() {
    spec::ModelSpec spec;
    spec.hidden_size = 16;
    spec.intermediate_size = 24;
    spec.num_layers = 4;
    spec.num_heads = 2;
    spec.num_kv_heads = 1;
    spec.head_dim = 8;
    spec.vocab_size = 32;
    spec.layers.assign(4, {});
    return spec;
}

/// Layer 0 and 3 are expanded; 1 lies ready; of 2 one group does.
bool is_ready(int layer, Group g) {
    return layer == 1 || (layer == 2 && g == Group::gate_up);
}

class PagerTest : public ::testing::Test {
  protected:
    PagerTest() {
        const spec::LoraSpec lora{.r = 4, .target_modules = {"q_proj", "v_proj", "gate_proj", "down_proj"}};
        const std::vector<spec::LayerLora> layers = spec::resolve_lora(lora, spec);
        layout = make_layout(spec, layers);
        const ParameterTable table = ParameterTable::lora(spec, layers, {});
        memory::Plan plan;
        WeightProvider::plan_slot(layout, at::kFloat, plan);
        Parameters::plan(table, config::Optimizer::adamw_torch, /*trains=*/false, {}, plan);
        AdapterMargins::plan(layout, layers, at::kCPU, /*transposed=*/false, plan);
        plan.place();
        arena = std::make_unique<memory::Arena>(plan, at::kCPU);
        parameters = std::make_unique<Parameters>(table, config::Optimizer::adamw_torch, /*trains=*/false,
                                                  ShardingPolicy{}, *arena);
        adapters = std::make_unique<Adapters>(*parameters, layers);
        change_adapters(1);
        std::vector<StoredLayer> stored(4);
        for (int layer = 0; layer < 4; ++layer)
            for (const Group g : layout.all_groups()) {
                StoredGroup& group = stored[static_cast<std::size_t>(layer)].groups[g];
                const at::Tensor base_NK = at::randn({layout[g].n, layout[g].k});
                bases[{layer, g}] = base_NK;
                if (is_ready(layer, g)) {
                    Operand operand =
                        dense_operand(layout[g], at::empty({layout[g].n + layout[g].r, layout[g].leading()}));
                    std::get<DenseBase>(operand.base).w_NK.copy_(base_NK);
                    group = std::move(operand);
                } else {
                    std::vector<StoredWeight> projections;
                    for (const Slice& slice : layout[g].slices)
                        projections.emplace_back(base_NK.narrow(0, slice.n_begin, slice.n).clone());
                    group = std::move(projections);
                }
            }
        weight_provider.emplace(ctx, layout, at::kFloat, std::move(stored), *arena, adapters.get(), nullptr,
                                TilePolicy{});
    }

    void change_adapters(uint64_t seed) {
        at::manual_seed(seed);
        parameters->state().params_P.copy_(at::randn({parameters->state().params_P.numel()}));
        ++parameters->version;
    }

    /// As products of this layer see them.
    void expect_ready(int layer) {
        SCOPED_TRACE(cat("layer ", layer));
        const LayerWeights& weights = weight_provider->ready(ctx, layer, 8);
        for (const Group g : layout.all_groups()) {
            SCOPED_TRACE(name_of(g));
            const at::Tensor& base_NK = bases.at({layer, g});
            EXPECT_TRUE(std::get<DenseBase>(weights[g].base).w_NK.equal(base_NK));
            for (const Slice& slice : layout[g].slices) {
                const Parameter* a = adapters->a({layer, slice.projection});
                if (a == nullptr) continue;
                const Parameter* b = adapters->b({layer, slice.projection});
                const double scale = adapters->lora(layer)[slice.projection].scale;
                EXPECT_TRUE(weights[g].a_RK.narrow(0, slice.r_begin, 4).equal(parameters->value(*a)));
                EXPECT_TRUE(weights[g]
                                .b_NR.narrow(0, slice.n_begin, slice.n)
                                .narrow(1, slice.r_begin, 4)
                                .allclose(parameters->value(*b) * scale));
            }
        }
    }

    ops::Context ctx{at::kCPU};
    spec::ModelSpec spec = small_spec();
    LayerLayout layout;
    std::unique_ptr<memory::Arena> arena;
    std::unique_ptr<Parameters> parameters;
    std::unique_ptr<Adapters> adapters;
    std::map<std::pair<int, Group>, at::Tensor> bases;  ///< by layer and group
    std::optional<WeightProvider> weight_provider;
};

TEST_F(PagerTest, EveryOrderOfLayersFindsItsWeights) {
    weight_provider->refresh(ctx);
    for (const int layer : {0, 1, 2, 3, 3, 2, 1, 0, 1, 3, 0, 2, 2, 0}) expect_ready(layer);
}

TEST_F(PagerTest, ChangedAdaptersReachLayersThatLieReadyAndTheSlot) {
    for (uint64_t step = 2; step < 5; ++step) {
        weight_provider->refresh(ctx);
        for (const int layer : {0, 1, 2, 3, 2, 1, 0}) expect_ready(layer);
        change_adapters(step);
    }
}

TEST_F(PagerTest, SaysWhatTheSlotHoldsAndForgetsItWhenTold) {
    weight_provider->refresh(ctx);
    EXPECT_EQ(weight_provider->held().layer, -1);
    expect_ready(3);
    EXPECT_EQ(weight_provider->held().layer, 3);
    expect_ready(1);
    EXPECT_EQ(weight_provider->held().layer, 3) << "a layer that lies ready takes no slot";
    expect_ready(2);
    EXPECT_EQ(weight_provider->held().layer, -1) << "of layer 2 a part only is in the slot";
    expect_ready(0);
    EXPECT_EQ(weight_provider->held().layer, 0);
    // Other work wrote over the slot: what is not held is expanded again.
    for (const Group g : layout.all_groups()) {
        const LayerWeights& weights = weight_provider->ready(ctx, 0, 8);
        std::get<DenseBase>(weights[g].base).w_NK.fill_(NAN);
    }
    weight_provider->forget();
    expect_ready(0);
}

}  // namespace
}  // namespace unsloth::weights
