#include "unsloth/planner/stages.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

namespace unsloth::planner {
namespace {

constexpr double none = std::numeric_limits<double>::infinity(), rounding = 1 + 1e-9;

/// A bin for layers: it takes from `least` to `most` of them, and `other_work` is the time of its other work.
struct Bin {
    double other_work = 0;
    int least = 1, most = 0;
    double time(int layers, double layer) const { return other_work + layers * layer; }
};

/// Assigns layers one by one to the bin with the least time, which balances the bins as well as whole layers allow. The
/// last of equal bins takes it: earlier stages hold more micro-batches. Empty: the bins cannot take this layer count.
std::vector<int> fill(const std::vector<Bin>& bins, int layers, double layer) {
    std::vector<int> counts;
    for (const Bin& bin : bins) {
        if (bin.least > bin.most) return {};
        counts.push_back(bin.least);
    }
    for (int left = layers - std::accumulate(counts.begin(), counts.end(), 0); left != 0; --left) {
        std::size_t lightest = bins.size();
        for (std::size_t i = 0; i < bins.size(); ++i)
            if (counts[i] < bins[i].most &&
                (lightest == bins.size() ||
                 bins[i].time(counts[i], layer) <= bins[lightest].time(counts[lightest], layer)))
                lightest = i;
        if (left < 0 || lightest == bins.size()) return {};
        ++counts[lightest];
    }
    return counts;
}

double longest(const std::vector<Bin>& bins, const std::vector<int>& counts, double layer) {
    double most = counts.empty() ? none : 0;
    for (std::size_t i = 0; i < counts.size(); ++i) most = std::max(most, bins[i].time(counts[i], layer));
    return most;
}

class Cut {
  public:
    Cut(const PartTimes& times, int ranks, int chunks) : times_(times), ranks_(ranks), chunks_(chunks) {}

    std::vector<spec::LayerRange> make(const std::vector<int>& most) const {
        std::vector<Bin> bins;
        for (int rank = 0; rank < ranks_; ++rank) {
            Bin& bin = bins.emplace_back(Bin{.least = chunks_, .most = times_.layers});
            for (const Bin& chunk : chunks_of(rank)) bin.other_work += chunk.other_work;
            if (!most.empty()) bin.most = std::min(bin.most, most[static_cast<std::size_t>(rank)]);
        }
        const double slowest = longest(bins, fill(bins, times_.layers, times_.layer), times_.layer);
        if (slowest == none) return {};
        lower(bins, [&](int rank, int layers) {
            return bins[static_cast<std::size_t>(rank)].time(layers, times_.layer) <= slowest * rounding;
        });
        // The least bound of a range for which the ranks still take all layers.
        std::vector<double> bounds;
        for (int rank = 0; rank < ranks_; ++rank)
            for (int layers = chunks_; layers <= bins[static_cast<std::size_t>(rank)].most; ++layers)
                bounds.push_back(slowest_range(rank, layers));
        std::sort(bounds.begin(), bounds.end());
        const auto bounded = [&](double bound) {
            std::vector<Bin> lowered = bins;
            lower(lowered, [&](int rank, int layers) { return slowest_range(rank, layers) <= bound * rounding; });
            return fill(lowered, times_.layers, times_.layer);
        };
        const auto bound =
            std::partition_point(bounds.begin(), bounds.end(), [&](double bound) { return bounded(bound).empty(); });
        return ranges(bounded(*bound));
    }

  private:
    /// Bins take at most as many layers as `allows`, which allows fewer of what it allows.
    template <class Allows>
    void lower(std::vector<Bin>& bins, const Allows& allows) const {
        for (int rank = 0; rank < ranks_; ++rank) {
            int& most = bins[static_cast<std::size_t>(rank)].most;
            while (most >= chunks_ && !allows(rank, most)) --most;
        }
    }
    /// A rank's ranges, any of which may have all its layers but those that the others need.
    std::vector<Bin> chunks_of(int rank) const {
        std::vector<Bin> bins(static_cast<std::size_t>(chunks_), Bin{.most = times_.layers});
        if (rank == 0) bins.front().other_work += times_.embedding;
        if (rank == ranks_ - 1) bins.back().other_work += times_.head;
        return bins;
    }
    double slowest_range(int rank, int layers) const {
        const std::vector<Bin> bins = chunks_of(rank);
        return longest(bins, fill(bins, layers, times_.layer), times_.layer);
    }
    std::vector<spec::LayerRange> ranges(const std::vector<int>& counts) const {
        std::vector<spec::LayerRange> cut;
        std::vector<std::vector<int>> each;
        for (int rank = 0; rank < ranks_; ++rank)
            each.push_back(fill(chunks_of(rank), counts[static_cast<std::size_t>(rank)], times_.layer));
        for (int number = 0, begin = 0; number < ranks_ * chunks_; ++number) {
            const int layers =
                each[static_cast<std::size_t>(number % ranks_)][static_cast<std::size_t>(number / ranks_)];
            cut.push_back({begin, begin + layers});
            begin += layers;
        }
        return cut;
    }

    const PartTimes& times_;
    int ranks_, chunks_;
};

}  // namespace

std::vector<spec::LayerRange> cut_layers(const PartTimes& times, int ranks, int chunks, const std::vector<int>& most) {
    return Cut(times, ranks, chunks).make(most);
}

}  // namespace unsloth::planner
