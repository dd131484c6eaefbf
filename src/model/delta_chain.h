// Gated delta nets over sequences that context-parallel ranks share (data/context_slice.h): what a chunk resumes from.
//
// The convolution's rows before each chunk are gathered from all ranks at once. The state visits the chunks in the
// order of tokens, c = 0 to 2 N - 1 of N ranks: rank r computes chunks r and 2 N - 1 - r of all sequences, and in
// between the states are with the others. Backward their gradients go the other way. Each hop is a broadcast: all ranks
// take part in the same order, and it needs no communicator for each pair, of which NCCL's take 0.8 GiB each.
#pragma once

#include "unsloth/data/context_slice.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/gated_delta.h"

namespace unsloth::model {

/// Where things are, on the host; S sequences, w taps, G = 2 S (w - 1) + 1 rows of each rank next to chunks' borders.
struct ChainIndex {
    std::vector<int32_t> offsets;  ///< [2 S + 1] tokens of this rank: two chunks of each sequence, some without tokens
    std::vector<int32_t> ends;     ///< tokens that the last w - 1 rows of this rank's chunks are, in order
    std::vector<int32_t> before;   ///< [2 S (w - 1)] of the rows of all ranks those before each chunk; G - 1: zeros
    std::vector<int32_t> places;   ///< [ends, w - 1] where each of `ends` is among all ranks' `before` (G each), or -1
    int64_t rows = 0;              ///< G
    int chunks = 0;                ///< of a sequence, as far as any has tokens
};
ChainIndex chain_index(const data::ContextSlice& context, int64_t taps);

/// before_NwC = the rows of x_TC before each of this rank's chunks.
void gather_rows_before(const LayerContext& c, const at::Tensor& x_TC, const at::Tensor& before_NwC);
/// Where the gradients of these rows are to be written, as before_NwC.
at::Tensor gradients_of_rows_before(const LayerContext& c, const at::Tensor& before_NwC);
/// dx_TC += the gradients of its rows that are before chunks of any rank.
void return_rows_before(const LayerContext& c, const at::Tensor& dx_TC);

/// The states of all sequences on their way, or their gradients: zeros at first.
class PassedStates {
  public:
    enum class Way : uint8_t { on, back };
    PassedStates(const LayerContext& c, Way way);
    /// Until the chunk of this turn is next; the states are then those that it begins with (back: ends with).
    void to_turn(int turn);
    /// After the last turn: the hops of other ranks.
    void finish();
    /// kept_NHkv gets the states of the turn's chunks.
    void keep(int turn, const at::Tensor& kept_NHkv) const;
    ops::KeptStates states() const;

  private:
    void hop(int to);
    const LayerContext& c_;
    Way way_;
    int chunk_;  ///< whose states these are
};

}  // namespace unsloth::model
