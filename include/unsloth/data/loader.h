// From rows to optimizer steps: which rows a step takes, and on which rank and in which micro-batch they are.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/data/dataset.h"
#include "unsloth/data/sampler.h"

namespace unsloth::data {

struct LoaderOptions {
    int64_t per_device_train_batch_size = 1;  ///< rows (packed rows with `packing`) of a micro-batch
    int64_t gradient_accumulation_steps = 1;  ///< micro-batches of a step
    uint64_t seed = 0;
    bool shuffle = true;
    bool packing = false;
    int64_t max_seq_length = 0;          ///< length of a packed row; needed with `packing` only
    int64_t max_tokens_per_batch = 0;    ///< fill micro-batches by tokens, not by rows; 0: off
    std::vector<double> source_weights;  ///< of the data set's sources; empty: each row once an epoch
    bool order_tokens = false;           ///< fill Batch::token_order
    bool count_first_labels = false;     ///< fill StepBatch::first_labels
    int rank = 0;
    int world_size = 1;
    ContextRank context;  ///< batches are this rank's slices of those that all ranks of its group read
};

/// The most that a micro-batch may hold, whatever the order of the rows: what memory is planned for.
struct BatchLimits {
    int64_t tokens = 0, segments = 0;
    int64_t keys = 0;          ///< tokens of all segments, with those that some share once for each; 0: none share any
    int64_t longest = 0;       ///< tokens of the longest segment
    int64_t labels = 0;        ///< rows with a target
    int64_t patches = 0;       ///< of the largest image: a tower sees one at a time; 0: there are none
    int64_t image_tokens = 0;  ///< that are images'
    int64_t copies = 2;        ///< most segments that share a token
    int64_t all_keys = 0;      ///< of slices: ContextSlice::all_keys; 0: rows are whole
    int64_t sequences = 0;     ///< of slices: that the ranks share; 0: rows are whole
    int64_t context_ranks = 1;
};

/// What an epoch takes.
struct EpochCounts {
    int64_t rows = 0;  ///< source rows, repetitions included
    int64_t tokens = 0;
    int64_t labels = 0;  ///< targets among them
    int64_t room =
        0;  ///< tokens that its packed rows, or its micro-batches filled by tokens, could hold; 0 without either
};

/// Training steps, by number. A step takes the next per_device_train_batch_size x world_size x
/// gradient_accumulation_steps rows of the epoch's order, whatever the world size; its k-th round of
/// per_device_train_batch_size x world_size rows is micro-batch k of all ranks, shared out so that their tokens differ
/// little. As in transformers' Trainer, the last step of an epoch takes what is left (fewer micro-batches, the last one
/// smaller and shared evenly by the ranks) and never reaches into the next epoch.
///
/// With `packing`, samples are joined once, before the first epoch, into rows of at most max_seq_length
/// tokens (see pack_rows), and these rows are what is shuffled and counted. Samples in a row stay separate
/// segments.
///
/// With `max_tokens_per_batch`, a micro-batch is as many rows as fit: every epoch's rows are packed again (see
/// pack_rows, ties in the epoch's order, so that rows of equal length change places), and the micro-batches shuffled.
/// Their number is the same in every epoch. A step takes gradient_accumulation_steps of them on each rank. Nothing is
/// padded in any case: a Batch is flat.
///
/// With `source_weights` an epoch takes of each source what mixture_counts() says (counted in packed rows with
/// `packing`, which then joins samples of one source only), in the order of mixture_order(). A row that comes again
/// within an epoch counts as another row for dropout (Batch::row_T), so that it gets masks of its own.
class StepLoader {
  public:
    /// Usage Error for an empty data set or sizes that make no sense.
    StepLoader(Dataset dataset, const LoaderOptions& options);

    const Dataset& dataset() const { return dataset_; }
    const LoaderOptions& options() const { return options_; }
    int64_t rows_per_epoch() const { return rows_per_epoch_; }  ///< packed rows with `packing`
    int64_t batches_per_epoch() const;                          ///< micro-batches over all ranks
    int64_t steps_per_epoch() const;
    /// max_steps if it is not negative, else num_train_epochs x steps_per_epoch, rounded up.
    int64_t total_steps(double num_train_epochs, int64_t max_steps) const;

    BatchLimits limits() const;

    /// Regroups a step's rows: each rank's, in their order, `rows` to a micro-batch (the last one may have fewer).
    /// All ranks get as many micro-batches, some perhaps empty. CheckError with max_tokens_per_batch.
    void set_pass_rows(int64_t rows);
    int64_t pass_rows() const { return pass_rows_; }
    /// Of a rank that has most of them in a whole step.
    int64_t rows_of_step() const { return options_.per_device_train_batch_size * options_.gradient_accumulation_steps; }
    int64_t passes_of_step() const;  ///< micro-batches of a whole step
    /// The rows (places in the data set, ascending, each once) that the steps with these numbers take on all ranks.
    /// Not safe from several threads at once.
    std::vector<int64_t> rows_of_steps(int64_t first, int64_t last);
    /// Over all ranks. Not safe from several threads at once.
    EpochCounts count_epoch(uint32_t epoch);

    /// The step with this number, from 0. Depends on nothing that was asked before: a resumed run just goes
    /// on. Not safe from several threads at once.
    StepBatch step(int64_t number);

  private:
    using Unit = std::pair<int64_t, int64_t>;  ///< [begin, end) in members_

    bool fills_by_tokens() const { return options_.max_tokens_per_batch > 0; }
    void make_units();
    void make_mixture();
    void fill_by_tokens(uint32_t epoch);
    /// Values of the units, for limits: the most that `count` of them may sum up to.
    int64_t most(std::vector<int64_t> values, int64_t count) const;
    int64_t round_rows() const;  ///< rows that all ranks together take for one micro-batch each
    int64_t rounds_per_epoch() const;
    std::pair<int64_t, int64_t> round_places(int64_t round) const;
    void enter_epoch(uint32_t epoch);
    // [begin, end) are places in the epoch's order.
    Unit unit_at(int64_t place) const;
    void count_repetitions();
    std::optional<int32_t> dropout_row(int64_t member, int64_t place) const;
    void count(int64_t begin, int64_t end, StepBatch& step) const;
    int64_t begin_of_batch(int64_t batch) const;
    std::vector<int64_t> own_places(int64_t round) const;
    std::vector<int64_t> share_of(std::vector<int64_t> places) const;
    Batch micro_batch(const std::vector<int64_t>& places) const;

    Dataset dataset_;
    LoaderOptions options_;
    std::vector<int64_t> members_;    ///< indices into the data set, unit after unit
    std::vector<Unit> units_;         ///< rows as they are batched
    std::vector<int64_t> unit_rows_;  ///< a unit's name in the epoch's order: its first row's name
    std::vector<int64_t> unit_tokens_;
    std::vector<MixtureSource> mixture_;  ///< with source_weights
    int64_t rows_per_epoch_ = 0;
    std::vector<int64_t> order_;  ///< of the units, in epoch epoch_
    std::vector<int64_t>
        repetition_;       ///< with source_weights: how often the unit at a place of order_ came before it in the epoch
    int64_t row_ids_ = 0;  ///< above every row id
    int64_t pieces_ = 1;   ///< above every number of a row's piece
    int64_t pass_rows_ = 0;            ///< of a micro-batch
    std::vector<int64_t> batch_ends_;  ///< with max_tokens_per_batch: where micro-batches end in order_
    int64_t epoch_ = -1;
};

/// Packs samples of the given lengths into rows of at most `capacity` tokens by best fit decreasing: from the longest
/// to the shortest (equal ones in order), each goes into the row that it leaves least room in (the first of several),
/// or opens a new one. Returns the samples of each row, ascending; rows by their first sample. The number of rows
/// depends on the lengths alone, not on their order. A length above capacity gets a row alone.
std::vector<std::vector<int64_t>> pack_rows(const std::vector<int64_t>& lengths, int64_t capacity);

/// How many rows, and targets of them: what sums of losses are divided by.
struct Extent {
    int64_t rows = 0, labels = 0;
    bool operator==(const Extent&) const = default;
};

/// Evaluation batches: all rows, in the file's order, as many whole rows in a batch as fit max_tokens (a
/// longer row is alone), all of one source. With several ranks, batch i is rank i % world_size's; `context`:
/// batches are slices, as StepLoader's.
class EvalLoader {
  public:
    EvalLoader(Dataset dataset, int64_t max_tokens, int rank = 0, int world_size = 1, ContextRank context = {});

    const Dataset& dataset() const { return dataset_; }
    int64_t batches() const { return static_cast<int64_t>(ranges_.size()); }  ///< of this rank
    int64_t most_batches() const { return most_batches_; }                    ///< of the rank that has most
    Batch batch(int64_t i) const;
    int32_t source(int64_t i) const;  ///< number of the source that batch i is of
    BatchLimits limits() const;
    /// Of each source, over all ranks.
    std::vector<Extent> extents() const;

  private:
    Dataset dataset_;
    std::vector<std::pair<int64_t, int64_t>> ranges_;  ///< [begin, end) rows of each batch of this rank
    int64_t most_batches_ = 0;
    ContextRank context_;
};

}  // namespace unsloth::data
