// Which rows of which rank are before each chunk of sequences that ranks share.
#include "model/delta_chain.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "unsloth/core/error.h"

namespace unsloth::model {
namespace {

using Ints = std::vector<int32_t>;

/// Rows of these lengths, whose ids are their tokens' places.
data::Batch numbered(const Ints& lengths) {
    std::vector<data::Sample> samples;
    int32_t id = 0;
    for (const int32_t length : lengths) {
        data::Sample& sample = samples.emplace_back();
        sample.ids.resize(static_cast<std::size_t>(length));
        std::iota(sample.ids.begin(), sample.ids.end(), id);
        sample.labels = sample.positions = sample.ids;
        for (int32_t& position : sample.positions) position -= id;
        id += length;
    }
    return data::make_batch(samples);
}

struct Shared {
    std::vector<data::Batch> slices;
    std::vector<ChainIndex> ranks;
    Ints ends;  ///< ids of all ranks' rows; -1: zeros, or nothing
};
Shared share(const data::Batch& whole, int size, int64_t taps) {
    Shared all;
    for (int rank = 0; rank < size; ++rank) {
        all.slices.push_back(data::slice(whole, {rank, size}));
        const ChainIndex& index = all.ranks.emplace_back(chain_index(*all.slices.back().context, taps));
        EXPECT_EQ(index.offsets.back(), all.slices.back().tokens());
        EXPECT_EQ(index.rows, all.ranks[0].rows);
        EXPECT_EQ(index.chunks, all.ranks[0].chunks);
        for (const int32_t token : index.ends)
            all.ends.push_back(all.slices.back().ids_T[static_cast<std::size_t>(token)]);
        all.ends.resize(static_cast<std::size_t>((rank + 1) * index.rows), -1);
    }
    return all;
}

TEST(DeltaChain, RowsBeforeAChunkAreThoseOfItsSequence) {
    for (const Ints& lengths : {Ints{1}, Ints{2}, Ints{17, 3}, Ints{64}, Ints{5, 40, 9, 1, 2, 7}, Ints{16385, 20}})
        for (const int size : {2, 3, 4})
            for (const int64_t taps : {2, 4}) {
                SCOPED_TRACE(
                    cat(lengths.size(), " sequences, the first of ", lengths[0], ", ", size, " ranks, ", taps));
                const Shared all = share(numbered(lengths), size, taps);
                const auto kept = static_cast<std::size_t>(taps - 1);
                for (std::size_t rank = 0; rank < all.ranks.size(); ++rank) {
                    const ChainIndex& index = all.ranks[rank];
                    const data::Batch& own = all.slices[rank];
                    ASSERT_EQ(index.before.size(), (index.offsets.size() - 1) * kept);
                    for (std::size_t chunk = 0; chunk + 1 < index.offsets.size(); ++chunk) {
                        if (index.offsets[chunk] == index.offsets[chunk + 1] || own.tokens() == 1) continue;
                        const auto first = static_cast<std::size_t>(index.offsets[chunk]);
                        for (std::size_t i = 0; i < kept; ++i) {
                            const auto back = static_cast<int32_t>(kept - i);
                            const int32_t id = own.positions_T[first] < back ? -1 : own.ids_T[first] - back;
                            EXPECT_EQ(all.ends[static_cast<std::size_t>(index.before[chunk * kept + i])], id);
                        }
                    }
                }
            }
}

/// The gradients come back from where the rows went.
TEST(DeltaChain, PlacesAreWhereEachRowIsBeforeAChunk) {
    for (const Ints& lengths : {Ints{2}, Ints{17, 3}, Ints{5, 40, 9, 1, 2, 7}})
        for (const int size : {2, 3, 4}) {
            const Shared all = share(numbered(lengths), size, 4);
            std::multimap<int32_t, int32_t> went, comes;  // a token's id, and where it is before a chunk
            for (std::size_t rank = 0; rank < all.ranks.size(); ++rank) {
                const ChainIndex& index = all.ranks[rank];
                for (std::size_t i = 0; i < index.before.size(); ++i)
                    if (const int32_t id = all.ends[static_cast<std::size_t>(index.before[i])]; id >= 0)
                        went.emplace(id, static_cast<int32_t>(rank * static_cast<std::size_t>(index.rows) + i));
                for (std::size_t i = 0; i < index.places.size(); ++i)
                    if (index.places[i] >= 0)
                        comes.emplace(all.slices[rank].ids_T[static_cast<std::size_t>(index.ends[i / 3])],
                                      index.places[i]);
            }
            EXPECT_EQ((std::set<std::pair<int32_t, int32_t>>(went.begin(), went.end())),
                      (std::set<std::pair<int32_t, int32_t>>(comes.begin(), comes.end())));
            EXPECT_EQ(went.size(), comes.size());
        }
}

TEST(DeltaChain, SequencesEndWithTheirLastChunk) {
    EXPECT_EQ(share(numbered({3}), 4, 4).ranks[0].chunks, 3);
    EXPECT_EQ(share(numbered({3, 5}), 4, 4).ranks[0].chunks, 5);
    const Shared all = share(numbered({64}), 4, 4);
    EXPECT_EQ(all.ranks[0].chunks, 8);
    EXPECT_EQ(all.ranks[1].offsets, (Ints{0, 8, 16}));
    EXPECT_EQ(share(numbered({1}), 2, 4).ranks[1].offsets, (Ints{0, 1, 1})) << "a token that nobody reads";
}

}  // namespace
}  // namespace unsloth::model
