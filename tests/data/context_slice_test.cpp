#include "unsloth/data/context_slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

/// Segments of these lengths, in rows of two; of every third token the label is masked.
Batch batch_of(const Ints& lengths) {
    std::vector<Sample> samples;
    int32_t id = 0;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
        if (s % 2 == 0) samples.emplace_back().row = 10 + static_cast<int64_t>(s);
        Sample& sample = samples.back();
        for (int32_t t = 0; t < lengths[s]; ++t, ++id) {
            sample.ids.push_back(id);
            sample.labels.push_back(id % 3 == 0 ? ignore_label : id);
            sample.positions.push_back(t);
        }
    }
    for (Sample& sample : samples) sample.segments = segments_at_zero(sample.positions);
    return make_batch(samples);
}

BatchLimits limits_of(const Batch& batch) {
    return {.tokens = batch.tokens(),
            .segments = static_cast<int64_t>(batch.segments.size()) - 1,
            .longest = batch.longest,
            .labels = batch.labels};
}

/// Number of a token among those that all ranks gather, by its place in the whole.
std::map<int32_t, int32_t> numbers_of(const std::vector<Batch>& slices) {
    std::map<int32_t, int32_t> places;
    for (std::size_t rank = 0; rank < slices.size(); ++rank)
        for (std::size_t t = 0; t < slices[rank].ids_T.size(); ++t)
            places[static_cast<int32_t>(rank) * slices[rank].context->tokens_each + static_cast<int32_t>(t)] =
                slices[rank].ids_T[t];  // ids are places
    return places;
}

TEST(ContextSlice, RanksHaveTheFirstAndTheLastChunks) {
    const Batch whole = batch_of({8, 5});
    const Batch first = slice(whole, {0, 2}), second = slice(whole, {1, 2});
    // Of 8 tokens chunks of two, of 5 the first has one more.
    EXPECT_EQ(first.ids_T, (Ints{0, 1, 6, 7, 8, 9, 12}));
    EXPECT_EQ(second.ids_T, (Ints{2, 3, 4, 5, 10, 11}));
    EXPECT_EQ(first.segments, (Ints{0, 2, 4, 6, 7}));
    EXPECT_EQ(first.positions_T, (Ints{0, 1, 6, 7, 0, 1, 4}));
    EXPECT_EQ(first.offset_T, (Ints{0, 1, 6, 7, 8, 9, 12}));
    EXPECT_EQ(first.row_T, Ints(7, 10));
    EXPECT_EQ(first.targets_T, (Ints{1, 2, 7, ignore_label, ignore_label, 10, ignore_label}));
    EXPECT_EQ(first.target_index, (Ints{0, 1, 2, 5}));
    EXPECT_EQ(first.target_ids, (Ints{1, 2, 7, 10}));
    EXPECT_EQ(first.labels + second.labels, whole.labels);
    EXPECT_EQ(first.longest, 8);
    EXPECT_EQ(second.longest, 6);
    const ContextSlice& context = *first.context;
    EXPECT_EQ(context.tokens_each, 7);
    EXPECT_EQ(context.all_keys, 14);
    EXPECT_EQ(context.before, (Ints{0, 6, 0, 4}));
    EXPECT_EQ(context.lengths, (Ints{8, 8, 5, 5}));
    EXPECT_EQ(context.key_offsets, (Ints{0, 2, 10, 12, 17}));
    EXPECT_EQ(context.keys, (Ints{0, 1, 0, 1, 7, 8, 9, 10, 2, 3, 4, 5, 4, 5, 11, 12, 6}));
    EXPECT_EQ(context.last_position, 7);
    EXPECT_EQ(context.labels, whole.labels);
    EXPECT_EQ(context.sequences, (Ints{8, 5}));
    EXPECT_EQ(second.context->place.rank, 1);
}

TEST(ContextSlice, EveryTokenAttendsOverItsSequenceUpToItself) {
    for (const Ints& lengths : {Ints{1}, Ints{2, 1, 1}, Ints{17, 3}, Ints{64}, Ints{5, 40, 9, 33, 1, 2, 7, 8, 16}})
        for (const int ranks : {1, 2, 3, 4, 8}) {
            SCOPED_TRACE(cat(lengths.size(), " segments, the first of ", lengths[0], ", ", ranks, " ranks"));
            const Batch whole = batch_of(lengths);
            const BatchLimits limits = slice_limits(limits_of(whole), {0, ranks});
            std::vector<Batch> slices;
            for (int rank = 0; rank < ranks; ++rank) slices.push_back(slice(whole, {rank, ranks}));
            if (ranks == 1) {
                EXPECT_FALSE(slices[0].context);
                EXPECT_EQ(slices[0].ids_T, whole.ids_T);
                EXPECT_EQ(limits.tokens, whole.tokens());
                EXPECT_EQ(limits.keys, 0);
                continue;
            }
            const std::map<int32_t, int32_t> places = numbers_of(slices);
            Ints seen(whole.ids_T.size());
            int64_t labels = 0, most_pairs = 0, pairs = 0;
            for (const Batch& own : slices) {
                const ContextSlice& context = *own.context;
                labels += own.labels;
                EXPECT_EQ(context.labels, whole.labels);
                EXPECT_LE(own.tokens(), limits.tokens);
                EXPECT_LE(own.segments.size() - 1, static_cast<std::size_t>(limits.segments));
                EXPECT_LE(context.keys.size(), static_cast<std::size_t>(limits.keys));
                EXPECT_LE(context.all_keys, limits.all_keys);
                EXPECT_LE(own.longest, limits.longest);
                EXPECT_LE(own.labels, limits.labels);
                EXPECT_GE(own.tokens(), 1);
                ASSERT_EQ(context.key_offsets.size(), own.segments.size());
                int64_t own_pairs = 0;
                for (std::size_t s = 0; s + 1 < own.segments.size(); ++s) {
                    const int32_t queries = own.segments[s + 1] - own.segments[s],
                                  count = context.key_offsets[s + 1] - context.key_offsets[s];
                    EXPECT_EQ(count, context.before[s] + queries);
                    own_pairs += int64_t{queries} * count - int64_t{queries} * (queries - 1) / 2;
                    // The last query's place, and that of its sequence's first token.
                    const int32_t last = own.ids_T[static_cast<std::size_t>(own.segments[s + 1]) - 1],
                                  first = last - count + 1;
                    for (int32_t k = 0; k < count; ++k)
                        EXPECT_EQ(places.at(context.keys[static_cast<std::size_t>(context.key_offsets[s] + k)]),
                                  first + k);
                    const auto begin = std::lower_bound(whole.segments.begin(), whole.segments.end(), first);
                    EXPECT_EQ(*begin, first);
                    if (own.tokens() > 1) {  // else perhaps one that nobody reads
                        EXPECT_EQ(context.lengths[s], *(begin + 1) - *begin);
                    }
                }
                most_pairs = std::max(most_pairs, own_pairs);
                pairs += own_pairs;
                for (std::size_t t = 0; t < own.ids_T.size(); ++t) {
                    const auto place = static_cast<std::size_t>(own.ids_T[t]);
                    EXPECT_EQ(own.positions_T[t], whole.positions_T[place]);
                    EXPECT_EQ(own.row_T[t], whole.row_T[place]);
                    EXPECT_EQ(own.offset_T[t], whole.offset_T[place]);
                    if (own.targets_T[t] != whole.targets_T[place]) continue;  // a token that nobody reads
                    ++seen[place];
                }
            }
            EXPECT_EQ(labels, whole.labels);
            if (whole.tokens() >= 2 * ranks * static_cast<int64_t>(lengths.size())) {
                EXPECT_EQ(seen, Ints(whole.ids_T.size(), 1));
            }
            if (lengths == Ints{64} && 64 % (2 * ranks) == 0) {
                EXPECT_EQ(most_pairs * ranks, pairs);
            }
        }
}

TEST(ContextSlice, LongSequencesAreCutInChunksOfOneLength) {
    constexpr int ranks = 2;
    for (const Ints& lengths : {Ints{16384}, Ints{16385}, Ints{17000, 18, 20000}, Ints{16383}}) {
        SCOPED_TRACE(lengths[0]);
        const Batch whole = batch_of(lengths);
        const BatchLimits limits = slice_limits(limits_of(whole), {0, ranks});
        Ints read(whole.ids_T.size());
        int64_t tokens = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const Batch own = slice(whole, {rank, ranks});
            const ContextSlice& context = *own.context;
            tokens += own.tokens();
            EXPECT_LE(own.tokens(), context.tokens_each);
            EXPECT_LE(own.tokens(), limits.tokens);
            EXPECT_LE(context.keys.size(), static_cast<std::size_t>(limits.keys));
            EXPECT_LE(own.longest, limits.longest);
            EXPECT_EQ(own.context->last_position, whole.longest - 1);
            for (std::size_t s = 0; s + 1 < own.segments.size(); ++s) {
                const int32_t length = context.lengths[s], queries = own.segments[s + 1] - own.segments[s];
                if (length >= 16384) {
                    EXPECT_EQ(queries, (length + 511) / 512 * 128);
                }
                EXPECT_EQ(context.key_offsets[s + 1] - context.key_offsets[s], context.before[s] + queries);
            }
            for (std::size_t i = 0; i < own.target_index.size(); ++i) {
                const auto place = static_cast<std::size_t>(own.target_index[i]),
                           there = static_cast<std::size_t>(own.ids_T[place]);  // ids are places
                EXPECT_EQ(own.targets_T[place], whole.targets_T[there]);
                EXPECT_EQ(own.target_ids[i], whole.targets_T[there]);
                ++read[there];
            }
        }
        for (std::size_t t = 0; t < read.size(); ++t)
            ASSERT_EQ(read[t], whole.targets_T[t] == ignore_label ? 0 : 1) << "token " << t;
        const auto filled = [](int64_t length) { return length < 16384 ? length : (length + 511) / 512 * 512; };
        EXPECT_EQ(tokens, std::accumulate(lengths.begin(), lengths.end(), int64_t{0},
                                          [&](int64_t sum, int32_t length) { return sum + filled(length); }));
    }
}

TEST(ContextSlice, ARankWithoutTokensHasOneThatNobodyReads) {
    const Batch whole = batch_of({2});
    int64_t labels = 0;
    for (int rank = 0; rank < 4; ++rank) {
        const Batch own = slice(whole, {rank, 4});
        ASSERT_EQ(own.tokens(), 1);
        labels += own.labels;
        EXPECT_EQ(own.context->keys.back(), rank) << "itself";
        EXPECT_EQ(own.labels_of_all(), 1);
        EXPECT_EQ(own.context->key_offsets.back(), rank == 1 ? 2 : 1);
        EXPECT_EQ(own.context->sequences, Ints{2});
    }
    EXPECT_EQ(labels, 1);
    EXPECT_EQ(slice(make_batch({}), {1, 4}).tokens(), 0);
    EXPECT_EQ(slice(make_batch({}), {1, 4}).labels_of_all(), 0);
}

TEST(ContextSlice, SharedPromptsAreNotCut) {
    const Sample pair{0, {1, 2, 3, 4}, {1, 2, 3, 4}, {0, 1, 2, 2}, {{0, 3}, {3, 1, 0, 2}}};
    EXPECT_THROW(slice(make_batch({&pair, 1}), {0, 2}), CheckError);
}

}  // namespace
}  // namespace unsloth::data
