#include "unsloth/spec/slice.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using spec::Projection;
using spec::Range;
using spec::TensorRank;

spec::ModelSpec model() {
    spec::ModelSpec m;
    m.hidden_size = 48;
    m.intermediate_size = 96;
    m.num_layers = 2;
    m.layers.resize(2);
    m.num_heads = 12;
    m.num_kv_heads = 4;
    m.head_dim = 8;
    m.vocab_size = 101;
    return m;
}

/// With a gated delta net in its first layer.
spec::ModelSpec hybrid() {
    spec::ModelSpec m = model();
    m.attention_output_gate = true;
    m.delta = spec::DeltaSpec{.key_heads = 4, .value_heads = 16, .key_dim = 8, .value_dim = 24, .taps = 4};
    m.layers[0].delta = true;
    return m;
}

TEST(Slice, OfOneRankIsTheModel) {
    const spec::ModelSpec own = spec::slice(model(), {});
    EXPECT_EQ(own.num_heads, 12);
    EXPECT_EQ(own.num_kv_heads, 4);
    EXPECT_EQ(spec::slice_of(model(), Projection::down, {}), (spec::MatrixSlice{{0, 48}, {0, 96}}));
    EXPECT_EQ(spec::vocabulary_slice(101, {}), (Range{0, 101}));
}

/// Slices lie side by side and cover the matrix, on the side that is cut; the other side is whole.
TEST(Slice, CoversEachMatrixOnce) {
    for (const int size : {1, 2, 4})
        for (const Projection p : model().linears) {
            int64_t next = 0;
            for (int rank = 0; rank < size; ++rank) {
                const spec::MatrixSlice part = spec::slice_of(model(), p, {rank, size});
                const Range cut = spec::is_cut_by_inputs(p) ? part.columns : part.rows;
                const Range whole = spec::is_cut_by_inputs(p) ? part.rows : part.columns;
                EXPECT_EQ(cut.begin, next) << spec::name_of(p) << " " << rank << " of " << size;
                next += cut.size;
                EXPECT_EQ(whole,
                          (Range{0, spec::is_cut_by_inputs(p) ? model().out_features(p) : model().in_features(p)}));
            }
            EXPECT_EQ(next, spec::is_cut_by_inputs(p) ? model().in_features(p) : model().out_features(p));
        }
}

/// A rank's query heads and the key/value head that they read, where that one serves several ranks.
TEST(Slice, NeighboursHaveTheSameKeyHeadWhereThereAreFewer) {
    for (const int kv_heads : {1, 2, 4}) {
        spec::ModelSpec m = model();
        m.num_kv_heads = kv_heads;
        const int64_t queries_of_a_key = m.num_heads / kv_heads;
        for (const int size : {2, 4})
            for (int rank = 0; rank < size; ++rank) {
                const spec::ModelSpec own = spec::slice(m, {rank, size});
                const Range q = spec::slice_of(m, Projection::q, {rank, size}).rows,
                            k = spec::slice_of(m, Projection::k, {rank, size}).rows;
                EXPECT_EQ(own.num_heads % own.num_kv_heads, 0);
                for (int64_t head = 0; head < own.num_heads; ++head) {
                    const int64_t whole = q.begin / m.head_dim + head,
                                  local_key = head / (own.num_heads / own.num_kv_heads);
                    EXPECT_EQ(k.begin / m.head_dim + local_key, whole / queries_of_a_key)
                        << kv_heads << " heads, rank " << rank << " of " << size << ", query " << whole;
                }
            }
    }
}

/// A rank's rows of a matrix that is of several projections are those that it has of each of them apart.
TEST(Slice, OfRowsOfSeveralProjections) {
    for (const int size : {2, 4}) {
        std::vector<int64_t> ranks_with(static_cast<std::size_t>(model().out_features(Projection::qkv)), 0);
        for (int rank = 0; rank < size; ++rank) {
            const spec::MatrixSlice part = spec::slice_of(model(), Projection::qkv, {rank, size});
            std::vector<Range> rows = {part.rows};
            rows.insert(rows.end(), part.more_rows.begin(), part.more_rows.end());
            ASSERT_EQ(rows.size(), 3U);
            int64_t first = 0;
            for (std::size_t i = 0; i < 3; ++i) {
                const auto p = static_cast<Projection>(i);
                const Range apart = spec::slice_of(model(), p, {rank, size}).rows;
                EXPECT_EQ(rows[i], (Range{first + apart.begin, apart.size})) << spec::name_of(p);
                for (int64_t row = rows[i].begin; row < rows[i].begin + rows[i].size; ++row)
                    ++ranks_with[static_cast<std::size_t>(row)];
                first += model().out_features(p);
            }
            EXPECT_EQ(part.row_count(), spec::slice(model(), {rank, size}).out_features(Projection::qkv));
            EXPECT_EQ(part.columns, (Range{0, 48}));
        }
        EXPECT_EQ(ranks_with, std::vector<int64_t>(ranks_with.size(), 1)) << size << " ranks";
    }
    EXPECT_EQ(spec::slice_of(model(), Projection::gate_up, {}), (spec::MatrixSlice{{0, 192}, {0, 48}}));
}

/// Every rank has the same part of each expert, and their width, not that of the dense layers, decides.
TEST(Slice, CutsEachExpert) {
    spec::ModelSpec m = model();
    m.intermediate_size = 97;
    m.experts = spec::ExpertsSpec{.count = 3, .top_k = 2, .intermediate_size = 32};
    for (spec::LayerSpec& layer : m.layers) layer.experts = true;
    EXPECT_EQ(spec::slice(m, {1, 2}).experts->intermediate_size, 16);
    for (const int expert : {0, 2}) {
        EXPECT_EQ(spec::slice_of(m, {1, Projection::up, expert}, {1, 2}), (spec::MatrixSlice{{16, 16}, {0, 48}}));
        EXPECT_EQ(spec::slice_of(m, {1, Projection::down, expert}, {1, 2}), (spec::MatrixSlice{{0, 48}, {16, 16}}));
    }
    m.experts->intermediate_size = 24;
    EXPECT_THROW(spec::slice(m, {0, 2}), Error);  // 12 columns
    m.experts->intermediate_size = 32;
    m.layers[0].experts = false;
    EXPECT_THROW(spec::slice(m, {0, 2}), Error);  // 97 are odd
}

/// A rank has whole heads: key heads, and the value heads that they serve, by all that is cut of them.
TEST(Slice, CutsGatedDeltaNetsByKeyHeads) {
    const spec::ModelSpec m = hybrid();
    const spec::DeltaSpec& delta = *m.delta;
    const int64_t serves = delta.value_heads / delta.key_heads;
    for (const int size : {2, 4})
        for (int rank = 0; rank < size; ++rank) {
            const TensorRank tp{rank, size};
            const spec::DeltaSpec own = *spec::slice(m, tp).delta;
            EXPECT_EQ(own, (spec::DeltaSpec{delta.key_heads / size, delta.value_heads / size, delta.key_dim,
                                            delta.value_dim, delta.taps}));
            const int64_t key = rank * own.key_heads, value = key * serves;
            const spec::MatrixSlice mixed = spec::slice_of(m, Projection::delta_qkv, tp);
            EXPECT_EQ(mixed.row_count(), own.channels());
            EXPECT_EQ(mixed.rows, (Range{key * delta.key_dim, own.keys()}));
            ASSERT_EQ(mixed.more_rows.size(), 2U);
            EXPECT_EQ(mixed.more_rows[0], (Range{delta.keys() + key * delta.key_dim, own.keys()}));
            EXPECT_EQ(mixed.more_rows[1], (Range{2 * delta.keys() + value * delta.value_dim, own.values()}));
            const Range values{value * delta.value_dim, own.values()}, heads{value, own.value_heads};
            EXPECT_EQ(spec::slice_of(m, Projection::delta_z, tp), (spec::MatrixSlice{values, {0, 48}}));
            EXPECT_EQ(spec::slice_of(m, Projection::delta_b, tp), (spec::MatrixSlice{heads, {0, 48}}));
            EXPECT_EQ(spec::slice_of(m, Projection::delta_a, tp), (spec::MatrixSlice{heads, {0, 48}}));
            EXPECT_EQ(spec::slice_of(m, Projection::delta_out, tp), (spec::MatrixSlice{{0, 48}, values}));
        }
    EXPECT_EQ(spec::slice_of(m, Projection::delta_qkv, {}), (spec::MatrixSlice{{0, delta.channels()}, {0, 48}}));
}

/// A head's query and the gate next to it stay together.
TEST(Slice, CutsGatedQueriesByHeads) {
    EXPECT_EQ(spec::slice_of(hybrid(), Projection::q, {1, 4}), (spec::MatrixSlice{{3 * 16, 3 * 16}, {0, 48}}));
    EXPECT_EQ(spec::slice_of(hybrid(), Projection::o, {1, 4}), (spec::MatrixSlice{{0, 48}, {3 * 8, 3 * 8}}));
}

TEST(Slice, CutsTheVocabularyAtMultiplesOfEight) {
    int64_t next = 0;
    for (int rank = 0; rank < 4; ++rank) {
        const Range rows = spec::vocabulary_slice(101, {rank, 4});
        EXPECT_EQ(rows.begin, next);
        EXPECT_EQ(rows.begin % 8, 0);
        EXPECT_GT(rows.size, 0);
        next += rows.size;
    }
    EXPECT_EQ(next, 101);
    EXPECT_THROW(spec::vocabulary_slice(31, {0, 4}), Error);
}

TEST(Slice, SaysWhichSizeDoesNotDivide) {
    const auto refusal = [](const spec::ModelSpec& m, int size) -> std::string {
        try {
            spec::slice(m, {0, size});
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), "parallel.model-does-not-divide");
            return error.what();
        }
        return "";
    };
    EXPECT_NE(refusal(model(), 5).find("num_attention_heads 12"), std::string::npos) << refusal(model(), 5);
    EXPECT_NE(refusal(model(), 3).find("num_key_value_heads 4"), std::string::npos) << refusal(model(), 3);
    spec::ModelSpec odd = model();
    odd.intermediate_size = 98;
    EXPECT_NE(refusal(odd, 4).find("intermediate_size 98"), std::string::npos) << refusal(odd, 4);
    odd.intermediate_size = 92;
    EXPECT_NE(refusal(odd, 4).find("23 columns"), std::string::npos) << refusal(odd, 4);
    odd = hybrid();
    odd.delta->value_heads = 8;
    EXPECT_NE(refusal(odd, 4).find("in_proj_b and in_proj_a 16 is 4 columns"), std::string::npos) << refusal(odd, 4);
    odd.delta->key_heads = 2;
    EXPECT_NE(refusal(odd, 4).find("linear_num_key_heads 2"), std::string::npos) << refusal(odd, 4);
    EXPECT_EQ(refusal(model(), 2), "");
}

}  // namespace
}  // namespace unsloth
