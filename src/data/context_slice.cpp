#include "unsloth/data/context_slice.h"

#include <algorithm>
#include <array>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

/// Attention is fastest where all chunks have as many tokens, a multiple of this (ops/attention_chunks.h).
constexpr int64_t chunk_step = 128;

/// The token count of a padded segment is a multiple of this.
int64_t filled_step(int ranks) {
    return 2 * ranks * chunk_step;
}
/// Segments of at least this many tokens are padded: by at most 1/32 of their chunks' 4096 tokens, and all in the last
/// chunk.
int64_t filled_from(int ranks) {
    return 2 * ranks * std::max<int64_t>(32 * chunk_step, filled_step(ranks));
}
int64_t filled(int64_t tokens, int ranks) {
    const int64_t step = filled_step(ranks);
    return tokens < filled_from(ranks) ? tokens : (tokens + step - 1) / step * step;
}

class Slicer {
  public:
    Slicer(const Batch& whole, ContextRank cp) : whole_(whole), cp_(cp) {}

    Batch slice() {
        UNSLOTH_CHECK(whole_.images.empty() && whole_.axes_T3.empty(), "ranks do not share rows with images");
        ContextSlice& context = slice_.context.emplace();
        context.last_position = *std::max_element(whole_.positions_T.begin(), whole_.positions_T.end());
        context.labels = whole_.labels;
        context.place = cp_;
        std::vector<int32_t> tokens(static_cast<std::size_t>(cp_.size));  // of each rank
        for_segments([&](const Chunks& chunks, int32_t length) {
            for (int rank = 0; rank < cp_.size; ++rank) at(tokens, rank) += chunks.tokens_of(rank);
            context.sequences.push_back(length);
        });
        context.tokens_each = std::max(1, *std::max_element(tokens.begin(), tokens.end()));
        context.all_keys = int64_t{context.tokens_each} * cp_.size;
        std::fill(tokens.begin(), tokens.end(), 0);
        for_segments([&](const Chunks& chunks, int32_t length) {
            for (const int chunk : chunks.of(cp_.rank))
                if (chunks.size(chunk) > 0) add(chunks, chunk, length, tokens);
            for (int rank = 0; rank < cp_.size; ++rank) at(tokens, rank) += chunks.tokens_of(rank);
        });
        if (slice_.ids_T.empty()) add_unread();
        slice_.segments.push_back(static_cast<int32_t>(slice_.ids_T.size()));
        slice_.labels = static_cast<int64_t>(slice_.target_index.size());
        slice_.target_starts.push_back(static_cast<int32_t>(slice_.labels));
        for (std::size_t s = 1; s < context.key_offsets.size(); ++s)
            slice_.longest = std::max(slice_.longest, context.key_offsets[s] - context.key_offsets[s - 1]);
        slice_.rows = whole_.rows;
        slice_.desirable = whole_.desirable;
        return std::move(slice_);
    }

  private:
    static int32_t& at(std::vector<int32_t>& of_ranks, int rank) { return of_ranks[static_cast<std::size_t>(rank)]; }

    template <class Visit>
    void for_segments(const Visit& visit) const {
        for (std::size_t s = 1; s < whole_.segments.size(); ++s) {
            const int32_t begin = whole_.segments[s - 1], end = whole_.segments[s];
            visit(Chunks(begin, end, cp_.size), end - begin);
        }
    }

    /// `tokens`: that each rank has of the segments before.
    void add(const Chunks& chunks, int chunk, int32_t length, const std::vector<int32_t>& tokens) {
        begin_segment(chunks.begin(chunk) - chunks.begin(0), length);
        for (int32_t t = chunks.begin(chunk); t < chunks.begin(chunk + 1); ++t)
            add_token(static_cast<std::size_t>(t), whole_.targets_T[static_cast<std::size_t>(t)]);
        for (int32_t t = chunks.size(chunk); t < chunks.room(chunk);
             ++t)  // after all others, which do not attend to it
            add_token(static_cast<std::size_t>(chunks.begin(chunk + 1) - 1), ignore_label);
        for (int before = 0; before <= chunk; ++before) {
            const int rank = chunks.rank_of(before);
            add_keys(rank, tokens[static_cast<std::size_t>(rank)] + chunks.offset(before), chunks.room(before));
        }
        end_keys();
    }

    void begin_segment(int32_t before, int32_t length) {
        slice_.segments.push_back(static_cast<int32_t>(slice_.ids_T.size()));
        slice_.target_starts.push_back(static_cast<int32_t>(slice_.target_index.size()));
        slice_.answer_starts.push_back(slice_.target_starts.back());
        slice_.context->before.push_back(before);
        slice_.context->lengths.push_back(length);
    }

    void add_token(std::size_t t, int32_t target) {
        const auto place = static_cast<int32_t>(slice_.ids_T.size());
        slice_.ids_T.push_back(whole_.ids_T[t]);
        slice_.targets_T.push_back(target);
        slice_.positions_T.push_back(whole_.positions_T[t]);
        slice_.row_T.push_back(whole_.row_T[t]);
        slice_.offset_T.push_back(whole_.offset_T[t]);
        if (target == ignore_label) return;
        slice_.target_index.push_back(place);
        slice_.target_ids.push_back(target);
    }

    void add_keys(int rank, int32_t first, int32_t count) {
        const int32_t begin = rank * slice_.context->tokens_each + first;
        for (int32_t key = begin; key < begin + count; ++key) slice_.context->keys.push_back(key);
    }
    void end_keys() { slice_.context->key_offsets.push_back(static_cast<int32_t>(slice_.context->keys.size())); }

    /// This rank's only token, which no other attends over and which predicts nothing: passes are never empty.
    void add_unread() {
        begin_segment(0, 1);
        add_token(0, ignore_label);
        add_keys(cp_.rank, 0, 1);
        end_keys();
    }

    const Batch& whole_;
    ContextRank cp_;
    Batch slice_;
};

}  // namespace

Chunks::Chunks(int32_t begin, int32_t end, int ranks) : begin_(begin), end_(end), ranks_(ranks) {
    const auto room = static_cast<int32_t>(filled(end - begin, ranks));
    each_ = room / (2 * ranks);
    longer_ = room % (2 * ranks);
}

Batch slice(const Batch& batch, ContextRank cp) {
    UNSLOTH_CHECK(cp.size >= 1 && cp.rank >= 0 && cp.rank < cp.size, "rank ", cp.rank, " of ", cp.size);
    if (cp.alone() || batch.tokens() == 0) return batch;
    UNSLOTH_CHECK(batch.shared.empty(), "segments that share tokens are not cut");
    return Slicer(batch, cp).slice();
}

BatchLimits slice_limits(const BatchLimits& whole, ContextRank cp) {
    if (cp.alone()) return whole;
    BatchLimits own;
    const int64_t many = std::min(whole.segments, whole.tokens / filled_from(cp.size)),
                  longest = filled(whole.longest, cp.size),
                  tokens = std::min(whole.tokens + many * (filled_step(cp.size) - 1),
                                    std::max(whole.tokens, whole.segments * longest));
    // Of a segment of L tokens at most L / ranks, rounded up; its two chunks see L and a chunk more, and up to a token
    // more for each chunk before that is longer than its mirror.
    own.tokens = std::max<int64_t>(1, std::min(tokens, (tokens + whole.segments * (cp.size - 1)) / cp.size));
    own.segments = std::max<int64_t>(1, std::min(own.tokens, 2 * whole.segments));
    own.keys = std::max<int64_t>(1, std::min(2 * tokens, tokens + tokens / (2 * cp.size) + whole.segments * cp.size));
    own.longest = longest;
    own.labels = std::min(whole.labels, own.tokens);
    own.patches = whole.patches;  // so that a model's plan can refuse images
    own.image_tokens = whole.image_tokens;
    own.all_keys = own.tokens * cp.size;
    own.sequences = whole.segments;
    own.context_ranks = cp.size;
    return own;
}

}  // namespace unsloth::data
