#include "tokenizer/merges.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

/// Below this many symbols a scan for the lowest rank beats a heap.
constexpr std::size_t short_word = 32;

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

/// A place where a merge may apply; the heap's top is the one of lowest rank, and of those the leftmost.
struct Step {
    uint32_t rank, place;
    int32_t left, right, merged;
    bool operator<(const Step& other) const { return std::tie(rank, place) > std::tie(other.rank, other.place); }
};

/// The same order over a linked list, with the places that may merge in a heap.
void merge_long(const MergeTable& table, std::vector<Symbol>& symbols) {
    constexpr uint32_t none = 0xFFFFFFFF;
    UNSLOTH_CHECK(symbols.size() < none, "a word of ", symbols.size(), " symbols");
    const auto n = static_cast<uint32_t>(symbols.size());
    std::vector<uint32_t> next(n), previous(n);
    for (uint32_t i = 0; i < n; ++i) {
        previous[i] = i == 0 ? none : i - 1;
        next[i] = i + 1 == n ? none : i + 1;
    }
    std::priority_queue<Step> queue;
    const auto consider = [&](uint32_t left) {
        if (left == none || next[left] == none) return;
        const int32_t a = symbols[left].id, b = symbols[next[left]].id;
        const Merge merge = table.find(pair_of(a, b));
        if (merge.rank != Merge::no_rank) queue.push({merge.rank, left, a, b, merge.id});
    };
    for (uint32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!queue.empty()) {
        const Step step = queue.top();
        queue.pop();
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
