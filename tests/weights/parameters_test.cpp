// The slices of the flat layout that ranks share.
#include "unsloth/weights/parameters.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "unsloth/spec/model_spec.h"

namespace unsloth::weights {
namespace {

ParameterTable table_of(int64_t layers) {
    spec::ModelSpec spec;
    spec.hidden_size = 64;
    spec.intermediate_size = 96;
    spec.num_layers = layers;
    spec.layers.resize(static_cast<std::size_t>(layers));
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim = 16;
    spec.vocab_size = 130;
    return ParameterTable::full(spec);
}

TEST(Slices, CoverTheLayoutOnceAndBeginAtChunks) {
    const ParameterTable table = table_of(3);
    for (const int size : {1, 2, 3, 4, 7, 64}) {
        EXPECT_GE(table.padded_elements(size), table.flat_elements());
        int64_t end = 0;
        for (int rank = 0; rank < size; ++rank) {
            const ParameterSlice slice = table.slice({rank, size}), padded = table.padded_slice({rank, size});
            EXPECT_EQ(slice.begin, end) << size;
            EXPECT_LE(slice.end, padded.end);
            EXPECT_EQ(padded.elements() * size, table.padded_elements(size));
            if (size > 1) {
                EXPECT_EQ(padded.begin % ops::gradient_norm_chunk, 0);
            }
            end = slice.end;
        }
        EXPECT_EQ(end, table.flat_elements());
    }
    EXPECT_EQ(table.padded_elements(1), table.flat_elements());
}

TEST(Slices, OfTheStatesFollowOneAnother) {
    using State = ops::AdamwState;
    const ParameterTable table = table_of(3);
    for (const auto member : {&State::params_P, &State::m32, &State::v8, &State::absmax_m8}) {
        const int64_t all = Parameters::state_slice(table, config::Optimizer::adamw_8bit, {}, member).elements();
        EXPECT_GT(all, 0);
        int64_t end = 0;
        for (int rank = 0; rank < 3; ++rank) {
            const ParameterSlice slice =
                Parameters::state_slice(table, config::Optimizer::adamw_8bit, {rank, 3}, member);
            EXPECT_EQ(slice.begin, end);
            end = slice.end;
        }
        EXPECT_EQ(end, all);
    }
}

/// The states of the slices together are those of one rank that has all: flags, and slots counted from each slice's
/// first.
TEST(Slices, HaveTheFlagsAndSlotsOfTheirBlocks) {
    const ParameterTable table = table_of(3);
    const auto make = [&](Share share) {
        memory::Plan plan;
        Parameters::plan(table, config::Optimizer::adamw_8bit, /*trains=*/true, {.share = share}, plan);
        plan.place();
        auto arena = std::make_unique<memory::Arena>(plan, at::kCPU);
        return std::pair(std::make_unique<Parameters>(table, config::Optimizer::adamw_8bit, true,
                                                      ShardingPolicy{.share = share}, *arena),
                         std::move(arena));
    };
    const auto whole = make({});
    std::vector<at::Tensor> flags;
    int64_t slots8 = 0, slots32 = 0, block = 0;
    for (int rank = 0; rank < 3; ++rank) {
        const auto part = make({rank, 3});
        const ops::AdamwState& state = part.first->state();
        flags.push_back(state.flags_b.clone());
        EXPECT_EQ(state.params_P.numel(), table.slice({rank, 3}).elements());
        EXPECT_EQ(part.first->values_P.numel(), table.padded_elements(3));
        for (int64_t b = 0; b < state.flags_b.numel(); ++b, ++block) {
            const bool eight = (state.flags_b[b].item<uint8_t>() & ops::block_8bit) != 0;
            EXPECT_EQ(state.slot_b[b].item<int32_t>() + (eight ? slots8 : slots32),
                      whole.first->state().slot_b[block].item<int32_t>());
        }
        slots8 += state.absmax_m8.numel();
        slots32 += state.m32.numel() / ops::optimizer_block;
    }
    EXPECT_TRUE(at::equal(at::cat(flags), whole.first->state().flags_b));
    EXPECT_EQ(slots8, whole.first->state().absmax_m8.numel());
}

}  // namespace
}  // namespace unsloth::weights
