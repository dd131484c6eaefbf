#include "tokenizer/merges.h"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

/// Below this many symbols a scan for the lowest rank beats a heap.
constexpr std::size_t short_word = 32;

/// Places where a merge may apply, lowest rank first, leftmost first within a rank.
class MergeQueue {
  public:
    struct Step {
        int32_t left, right, merged;
        uint32_t place;
    };

    void push(Merge merge, int32_t left, int32_t right, uint32_t place) {
        const auto [entry, created] = bucket_of_rank_.try_emplace(merge.rank, buckets_.size());
        if (created) buckets_.push_back({left, right, merge.id, {}, 0, true});
        Bucket& bucket = buckets_[entry->second];
        if (bucket.drained()) {
            bucket.places.clear();
            bucket.taken = 0;
            bucket.sorted = true;
            ranks_.push({merge.rank, entry->second});
        }
        bucket.sorted = bucket.sorted && (bucket.places.empty() || bucket.places.back() < place);
        bucket.places.push_back(place);
    }

    bool pop(Step& step) {
        if (ranks_.empty()) return false;
        Bucket& bucket = buckets_[ranks_.top().bucket];
        if (!bucket.sorted)
            std::sort(bucket.places.begin() + static_cast<std::ptrdiff_t>(bucket.taken), bucket.places.end());
        bucket.sorted = true;
        step = {bucket.left, bucket.right, bucket.merged, bucket.places[bucket.taken++]};
        if (bucket.drained()) ranks_.pop();
        return true;
    }

  private:
    struct Bucket {
        int32_t left, right, merged;
        std::vector<uint32_t> places;
        std::size_t taken;  ///< places before it are done
        bool sorted;
        bool drained() const { return taken == places.size(); }
    };
    struct Rank {
        uint32_t rank;
        std::size_t bucket;
        bool operator<(const Rank& other) const { return rank > other.rank; }  // the heap's top is the lowest
    };
    std::unordered_map<uint32_t, std::size_t> bucket_of_rank_;
    std::vector<Bucket> buckets_;
    std::priority_queue<Rank> ranks_;  ///< of buckets that are not drained, each once
};

/// Repeats the merge of lowest rank, leftmost first, until none is left: O(n²) steps over a few entries.
void merge_short(const MergeTable& table, std::vector<Symbol>& symbols) {
    std::array<Merge, short_word> merges;
    std::size_t n = symbols.size();
    for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = table.find(pair_of(symbols[i].id, symbols[i + 1].id));
    while (n > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < n; ++i) {
            if (merges[i].rank < merges[best].rank) best = i;
        }
        if (merges[best].rank == Merge::no_rank) break;
        symbols[best] = {merges[best].id, symbols[best].length + symbols[best + 1].length};
        for (std::size_t i = best + 1; i + 1 < n; ++i) symbols[i] = symbols[i + 1], merges[i] = merges[i + 1];
        --n;
        if (best > 0) merges[best - 1] = table.find(pair_of(symbols[best - 1].id, symbols[best].id));
        if (best + 1 < n) merges[best] = table.find(pair_of(symbols[best].id, symbols[best + 1].id));
    }
    symbols.resize(n);
}

/// The same order over a linked list, with the places of each merge kept together: a long word has far fewer
/// different merges than places, so the heap of ranks stays small and time is close to linear in the word's
/// length.
void merge_long(const MergeTable& table, std::vector<Symbol>& symbols) {
    constexpr uint32_t none = 0xFFFFFFFF;
    UNSLOTH_CHECK(symbols.size() < none, "a word of ", symbols.size(), " symbols");
    const auto n = static_cast<uint32_t>(symbols.size());
    std::vector<uint32_t> next(n), previous(n);
    for (uint32_t i = 0; i < n; ++i) {
        previous[i] = i == 0 ? none : i - 1;
        next[i] = i + 1 == n ? none : i + 1;
    }
    MergeQueue queue;
    const auto consider = [&](uint32_t left) {
        if (left == none || next[left] == none) return;
        const Merge merge = table.find(pair_of(symbols[left].id, symbols[next[left]].id));
        if (merge.rank != Merge::no_rank) {
            queue.push(merge, symbols[left].id, symbols[next[left]].id, left);
        }
    };
    for (uint32_t i = 0; i + 1 < n; ++i) consider(i);
    MergeQueue::Step step;
    while (queue.pop(step)) {
        // A place is stale when either side was merged since; a swallowed symbol has length 0.
        Symbol& left = symbols[step.place];
        const uint32_t right = next[step.place];
        if (left.length == 0 || left.id != step.left || right == none || symbols[right].id != step.right) continue;
        left = {step.merged, left.length + symbols[right].length};
        symbols[right].length = 0;
        next[step.place] = next[right];
        if (next[right] != none) previous[next[right]] = step.place;
        consider(previous[step.place]);
        consider(step.place);
    }
    std::erase_if(symbols, [](const Symbol& symbol) { return symbol.length == 0; });
}

}  // namespace

void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols) {
    if (symbols.size() <= short_word) {
        merge_short(table, symbols);
    } else {
        merge_long(table, symbols);
    }
}

}  // namespace unsloth::tokenizer
