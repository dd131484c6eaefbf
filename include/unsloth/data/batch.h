// What the data module yields and the step consumes: plain vectors, no LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "unsloth/data/policy_step.h"
#include "unsloth/data/segments.h"
#include "unsloth/data/token_order.h"

namespace unsloth::data {

inline constexpr int32_t ignore_label = -100;

/// The label of a prompt token that is a loss token; of such a label, the token's id.
constexpr int32_t prompt_label(int32_t id) {
    return ignore_label - 1 - id;
}
constexpr bool is_prompt_label(int32_t label) {
    return label < ignore_label;
}

/// The most tokens that may say the options of one question.
inline constexpr int64_t most_option_tokens = 3 * 255;

/// The options of a question, by the tokens that say them: an option's tokens come one after another.
struct OptionTokens {
    std::vector<int32_t> ids;   ///< each once
    std::vector<float> shares;  ///< as many: at an option's first token its probability in the answer, at others -1

    bool operator==(const OptionTokens&) const = default;
};

/// An image among a row's tokens, as a model's tower reads it. With p pixels a patch's side and m patches a merged
/// square's side, its tokens are grid_h grid_w / m², one after another from `first` on.
struct Image {
    int32_t first = 0;               ///< index of its first token: in a Sample of its ids, in a Batch of ids_T
    int32_t grid_h = 0, grid_w = 0;  ///< patches, of each a multiple of m
    /// Bytes before they are normalised, [grid_h grid_w, 3, p, p]: merged squares row by row, and within each its m x m
    /// patches row by row.
    std::shared_ptr<const std::vector<uint8_t>> pixels;
    int32_t cached =
        0;  ///< the number of its tokens that are not in the batch: a cache has their keys. `first` is the next one
    /// Names its file's bytes and its grid, where features of images may be kept (data/kept_images.h). An image whose
    /// features are kept has no pixels.
    std::string content = {};

    int64_t patches() const { return int64_t{grid_h} * grid_w; }
    bool same_as(const Image& other) const {
        return content.empty() || other.content.empty() ? pixels == other.pixels : content == other.content;
    }
};

/// Where the file of an image is.
struct ImageSource {
    bool inlined = false;  ///< `data` is the file itself: the row brought it
    std::string data;      ///< else its absolute path, links resolved

    bool operator==(const ImageSource&) const = default;
};

/// One row ready to train on. Ids, labels and positions have the same length.
struct Sample {
    int64_t row = 0;  ///< index of the row in its source file, from 0
    std::vector<int32_t> ids;
    std::vector<int32_t> labels;              ///< in place: labels[t] belongs to ids[t]; ignore_label is not trained
    std::vector<int32_t> positions;           ///< position ids, whatever the segments
    Segments segments = {};                   ///< empty: one
    std::optional<int32_t> dropout_row = {};  ///< names the row's dropout masks; absent: `row`
    bool desirable = false;                   ///< the verdict on the row's answer, where it has one
    OptionTokens options = {};                ///< of a decision, whose last token alone is a target
    std::vector<Image> images = {};           ///< in the order of their tokens
    std::vector<ImageSource> sources = {};    ///< of each image, where rows were read from files
    /// [T, 3] positions of time, height and width, where a row has images; empty: `positions`, three times. `positions`
    /// then count the segment's tokens as they do elsewhere.
    std::vector<int32_t> axes = {};
};

/// One of `size` ranks that share each row's tokens (data/context_slice.h).
struct ContextRank {
    int rank = 0, size = 1;
    bool alone() const { return size == 1; }
};

/// What a batch that is a rank's slice says of the whole. Its segments are chunks of sequences.
struct ContextSlice {
    int32_t tokens_each = 0;    ///< most tokens that a rank has: key k of rank r is number r * tokens_each + k
    int64_t all_keys = 0;       ///< the number of keys of all ranks
    std::vector<int32_t> keys;  ///< of each segment: its sequence from the start to the chunk's end
    std::vector<int32_t> key_offsets = {0};  ///< [S + 1] into them
    std::vector<int32_t> before;             ///< [S] tokens of its sequence before the chunk
    std::vector<int32_t> lengths;            ///< [S] and in all
    int32_t last_position = 0;               ///< the largest of all ranks'
    int64_t labels = 0;                      ///< targets of all ranks
    ContextRank place;
    std::vector<int32_t> sequences;  ///< tokens of each that the ranks share, those without a chunk here among them
};

/// A micro-batch: tokens are flat, T of them, rows one after another without padding. T may be 0: in the last
/// step of an epoch a rank may have no row left, and takes part with nothing.
struct Batch {
    std::vector<int32_t> ids_T;
    std::vector<int32_t>
        targets_T;  ///< what position t must predict: the label of t + 1 within its segment, or ignore_label
    std::vector<int32_t> positions_T;
    std::vector<int32_t> axes_T3;  ///< [T, 3] Sample::axes; empty where no row has any
    std::vector<Image> images;     ///< of all rows, in the order of their tokens
    std::vector<int32_t>
        row_T;  ///< names the row of each token for dropout's counter: the source row, unless it repeats in an epoch
    std::vector<int32_t> offset_T;  ///< token's index in its source row
    std::vector<int32_t> segments;  ///< [S + 1] offsets into T, from 0 to T; attention never crosses them
    std::vector<int32_t> shared;    ///< [S] tokens of its owner that the segment begins with too; empty: none
    std::vector<int32_t> owners;    ///< [S] numbers of these segments, -1 without; empty as `shared`
    std::vector<int32_t>
        target_index;  ///< [labels] the places t with a target: the lm_head runs on these only. They ascend, but that
                       ///< the last token that segments share is in the parts of all of them
    std::vector<int32_t> target_ids;      ///< [labels] what these must predict
    std::vector<int32_t> target_starts;   ///< [S + 1] where each segment's targets begin in these two, and the end
    std::vector<int32_t> answer_starts;   ///< [S] where its answer's begin: after those with a prompt_label
    std::vector<int64_t> rows;            ///< source rows, in order
    std::vector<int32_t> desirable;       ///< of each row: Sample::desirable
    std::vector<OptionTokens> options;    ///< of each target, where rows are decisions; else empty
    TokenOrder token_order;               ///< of ids_T, only where the loader was asked for it
    std::optional<ContextSlice> context;  ///< of a rank's slice; nothing: the rows are whole
    int64_t labels = 0;                   ///< targets that are not ignore_label
    int32_t longest = 0;  ///< tokens of the longest segment, shared ones and those before a chunk among them

    int64_t tokens() const { return static_cast<int64_t>(ids_T.size()); }
    /// Targets of all ranks that share the rows: without any there is nothing to learn, or to score.
    int64_t labels_of_all() const { return context ? context->labels : labels; }
    int32_t shared_by(std::size_t segment) const { return shared.empty() ? 0 : shared[segment]; }
    /// Tokens that the segment has, shared ones among them.
    int32_t length(std::size_t segment) const { return segments[segment + 1] - segments[segment] + shared_by(segment); }
};

/// One optimizer step: the micro-batches of this rank, and the step's counts over the micro-batches of all
/// ranks (known on every rank before the first forward, because every rank knows every row's counts).
struct StepBatch {
    std::vector<Batch> micro;  ///< as many on every rank
    int64_t labels = 0;        ///< targets of the whole step, over all ranks: the loss's divisor
    int64_t tokens = 0;        ///< input tokens of the whole step, over all ranks
    int64_t rows = 0;          ///< rows of the whole step, over all ranks
    int64_t first_labels = 0;  ///< targets of the rows' first segments, over all ranks; where the loader counts them
    double epoch = 0;          ///< after this step, in epochs (fractional)
    uint32_t epoch_index = 0;  ///< the epoch the step began in
    std::shared_ptr<const PolicyStep> policy = {};  ///< of reinforcement learning
};

/// Joins samples into one micro-batch: shifts labels into targets (the first token of a segment is a target only of a
/// shared token before it) and concatenates. The source rows must fit 32 bits. token_order stays empty. CheckError for
/// lengths that differ and segments that are not sound.
Batch make_batch(std::span<const Sample> samples);

/// Makes every position of the batch a row of the head (those without a target, such as a segment's last one, too), so
/// that the model scores all of them, in order.
void cover_every_position(Batch& batch);

}  // namespace unsloth::data
