#include "model/delta_chain.h"

#include <algorithm>
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

constexpr int turns = 2;  ///< chunks of a sequence that a rank has

/// Rows and tokens of the ranks' chunks.
class ChainLayout {
  public:
    ChainLayout(const data::ContextSlice& context, int64_t taps)
        : ranks_(context.place.size), kept_(static_cast<int32_t>(taps) - 1), first_end_(sizes(ranks_)) {
        for (const int32_t tokens : context.sequences) sequences_.emplace_back(0, tokens, ranks_);
        for (int rank = 0; rank < ranks_; ++rank) {
            int32_t ends = 0;
            for (const data::Chunks& chunks : sequences_)
                for (const int chunk : chunks.of(rank)) {
                    first_end_[sizes(rank)].push_back(ends);
                    ends += ends_of(chunks, chunk);
                }
        }
    }

    const std::vector<data::Chunks>& sequences() const { return sequences_; }
    int64_t rows() const { return turns * static_cast<int64_t>(sequences_.size()) * kept_ + 1; }
    int32_t kept() const { return kept_; }
    int32_t ends_of(const data::Chunks& chunks, int chunk) const { return std::min(chunks.room(chunk), kept_); }
    /// Of a rank's ends the number of this token, which is one.
    int32_t end_at(std::size_t sequence, int chunk, int32_t token) const {
        const data::Chunks& chunks = sequences_[sequence];
        const int32_t end = chunks.begin(chunk) + chunks.room(chunk);
        return first_end_[sizes(chunks.rank_of(chunk))][slot(sequence, chunk)] + token - (end - ends_of(chunks, chunk));
    }
    /// The number of a chunk among its rank's.
    std::size_t slot(std::size_t sequence, int chunk) const { return turns * sequence + (chunk < ranks_ ? 0 : 1); }

    /// f(sequence, chunk, i, chunk before, token) for each row i before a chunk with tokens that its sequence has.
    template <class F>
    void each_row_before(const F& f) const {
        for (std::size_t s = 0; s < sequences_.size(); ++s)
            for (int chunk = 1; chunk < sequences_[s].count() && sequences_[s].size(chunk) > 0; ++chunk) {
                int from = chunk - 1;
                for (int32_t i = kept_ - 1; i >= 0; --i) {
                    const int32_t token = sequences_[s].begin(chunk) - kept_ + i;
                    if (token < 0) break;
                    while (token < sequences_[s].begin(from)) --from;
                    f(s, chunk, i, from, token);
                }
            }
    }

  private:
    static std::size_t sizes(int n) { return static_cast<std::size_t>(n); }
    int ranks_;
    int32_t kept_;
    std::vector<data::Chunks> sequences_;
    std::vector<std::vector<int32_t>> first_end_;  ///< by rank and slot
};

const DeltaChain& chain_of(const LayerContext& c) {
    return *c.tokens.chain;
}

/// The first rows of a buffer.
at::Tensor first_rows(const at::Tensor& x_GC, int64_t rows) {
    return x_GC.narrow(0, 0, rows);
}

at::Tensor all_rows(const LayerContext& c) {
    return first_rows(c.scratch.passed.all_rows_GC, c.cp.place().size * chain_of(c).rows);
}

}  // namespace

ChainIndex chain_index(const data::ContextSlice& context, int64_t taps) {
    const ChainLayout layout(context, taps);
    const int own_rank = context.place.rank;
    ChainIndex index;
    index.rows = layout.rows();
    index.offsets = {0};
    for (const data::Chunks& chunks : layout.sequences()) {
        for (const int chunk : chunks.of(own_rank)) {
            const int32_t end = index.offsets.back() + chunks.room(chunk);
            index.offsets.push_back(end);
            for (int32_t t = end - layout.ends_of(chunks, chunk); t < end; ++t) index.ends.push_back(t);
        }
        for (int chunk = index.chunks; chunk < chunks.count() && chunks.size(chunk) > 0; ++chunk)
            index.chunks = chunk + 1;
    }
    if (index.offsets.back() == 0)  // the token that no rank reads is its first chunk
        std::fill(index.offsets.begin() + 1, index.offsets.end(), 1);
    const auto kept = static_cast<std::size_t>(layout.kept());
    index.before.resize((index.offsets.size() - 1) * kept, static_cast<int32_t>(index.rows) - 1);
    index.places.resize(index.ends.size() * kept, -1);
    layout.each_row_before([&](std::size_t s, int chunk, int32_t i, int from, int32_t token) {
        const data::Chunks& chunks = layout.sequences()[s];
        const auto row = layout.slot(s, chunk) * kept + static_cast<std::size_t>(i);
        const int32_t end = layout.end_at(s, from, token);
        const auto of_rank = [&](int rank, int64_t number) { return static_cast<int32_t>(rank * index.rows + number); };
        if (chunks.rank_of(chunk) == own_rank) index.before[row] = of_rank(chunks.rank_of(from), end);
        if (chunks.rank_of(from) != own_rank) return;
        const auto first = index.places.begin() + static_cast<std::ptrdiff_t>(kept) * end;
        *std::find(first, first + static_cast<std::ptrdiff_t>(kept), -1) =
            of_rank(chunks.rank_of(chunk), static_cast<int64_t>(row));
    });
    return index;
}

void gather_rows_before(const LayerContext& c, const at::Tensor& x_TC, const at::Tensor& before_NwC) {
    const DeltaChain& chain = chain_of(c);
    ops::Context& ctx = c.group.ctx;
    const at::Tensor own_GC = first_rows(c.scratch.passed.own_GC, chain.rows);
    if (const int64_t ends = chain.ends_n.numel(); ends > 0)
        ops::gather_rows(ctx, x_TC, chain.ends_n, first_rows(own_GC, ends));
    ops::zero_2d(ctx, own_GC.narrow(0, chain.rows - 1, 1));
    c.cp.gather(ctx, own_GC, all_rows(c), "inputs of the convolution");
    ops::gather_rows(ctx, all_rows(c), chain.before_n,
                     first_rows(before_NwC.view({-1, x_TC.size(1)}), chain.before_n.numel()));
}

at::Tensor gradients_of_rows_before(const LayerContext& c, const at::Tensor& before_NwC) {
    return first_rows(c.scratch.passed.drows_GC, before_NwC.size(0) * before_NwC.size(1)).view(before_NwC.sizes());
}

void return_rows_before(const LayerContext& c, const at::Tensor& dx_TC) {
    const DeltaChain& chain = chain_of(c);
    ops::Context& ctx = c.group.ctx;
    c.cp.gather(ctx, first_rows(c.scratch.passed.drows_GC, chain.rows), all_rows(c), "gradients of the convolution");
    const int64_t ends = chain.ends_n.numel();
    if (ends == 0) return;
    const at::Tensor sums_GC = first_rows(c.scratch.passed.sums_GC, ends),
                     own_GC = first_rows(c.scratch.passed.own_GC, ends);
    ops::sum_rows(ctx, all_rows(c), chain.places_nP, sums_GC);
    ops::gather_rows(ctx, dx_TC, chain.ends_n, own_GC);
    own_GC.add_(sums_GC);
    ops::scatter_rows(ctx, own_GC, chain.ends_n, dx_TC);
}

PassedStates::PassedStates(const LayerContext& c, Way way)
    : c_(c), way_(way), chunk_(way == Way::on ? 0 : 2 * c.cp.place().size - 1) {
    const at::Tensor states = c.scratch.passed.states_NHkv;
    ops::zero_2d(c.group.ctx, states.view({states.size(0), -1}));
}

/// A chunk without tokens ends its sequence: where all are, nothing is passed.
void PassedStates::hop(int to) {
    const int last = 2 * c_.cp.place().size - 1, step = way_ == Way::on ? 1 : -1;
    const auto rank_of = [&](int chunk) { return std::min(chunk, last - chunk); };
    for (; chunk_ != to; chunk_ += step) {
        if (std::max(chunk_, chunk_ + step) >= chain_of(c_).most_chunks) continue;
        if (rank_of(chunk_) == rank_of(chunk_ + step)) continue;
        c_.cp.spread(c_.group.ctx, c_.scratch.passed.states_NHkv.narrow(0, 0, chain_of(c_).sequences()),
                     rank_of(chunk_), way_ == Way::on ? "states" : "gradients of states");
    }
}

void PassedStates::to_turn(int turn) {
    const data::ContextRank& place = c_.cp.place();
    hop(turn == 0 ? place.rank : 2 * place.size - 1 - place.rank);
}

void PassedStates::finish() {
    hop(way_ == Way::on ? 2 * c_.cp.place().size - 1 : 0);
}

void PassedStates::keep(int turn, const at::Tensor& kept_NHkv) const {
    const int64_t sequences = chain_of(c_).sequences();
    ops::copy_2d(c_.group.ctx, c_.scratch.passed.states_NHkv.narrow(0, 0, sequences).view({sequences, -1}),
                 kept_NHkv.narrow(0, 0, turns * sequences).view({sequences, turns, -1}).select(1, turn));
}

ops::KeptStates PassedStates::states() const {
    return {c_.scratch.passed.states_NHkv, chain_of(c_).sequence_of, chain_of(c_).sequence_of_S};
}

}  // namespace unsloth::model
