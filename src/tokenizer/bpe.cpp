#include "tokenizer/bpe.h"

#include <algorithm>
#include <atomic>
#include <queue>
#include <unordered_map>

#include "tokenizer/byte_level.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

/// Below this many symbols a scan for the lowest rank beats a heap.
constexpr std::size_t short_word = 32;

/// A direct-mapped cache of short words; one per thread, so no locks. An entry fills a cache line.
struct alignas(64) CachedWord {
    static constexpr std::size_t max_bytes = 30, max_tokens = 6;
    uint64_t owner_and_size = 0;  // owner << 16 | bytes << 8 | tokens; 0: empty
    char bytes[max_bytes];
    char padding[2];
    int32_t ids[max_tokens];
};
static_assert(sizeof(CachedWord) == 64);
constexpr std::size_t cached_words = 1 << 14;

std::vector<CachedWord>& word_cache() {
    thread_local std::vector<CachedWord> cache(cached_words);
    return cache;
}

std::atomic<uint64_t> next_owner{1};

/// Places where a merge may apply, lowest rank first, leftmost first within a rank.
class MergeQueue {
  public:
    struct Step {
        int32_t left, right, merged;
        uint32_t place;
    };

    void push(MergeTable::Merge merge, int32_t left, int32_t right, uint32_t place) {
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

}  // namespace

Bpe::Bpe(const BpeSpec& spec)
    : owner_(next_owner.fetch_add(1)),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      ignore_merges_(spec.ignore_merges),
      words_(spec.ignore_merges ? spec.vocab.size() : 0),
      merges_(spec.merges.size()) {
    int32_t max_id = -1;
    std::size_t total = 0;
    for (const auto& [token, id] : spec.vocab) max_id = std::max(max_id, id), total += token.size();
    token_length_.resize(max_id + 1);
    token_bytes_.reserve(total);  // views into it must stay valid: bytes are never longer than their raw form
    byte_ids_.fill(-1);
    for (const auto& [token, id] : spec.vocab) {
        const std::optional<std::string> bytes = bytes_of_token(token);
        if (!bytes) continue;  // no word can become this token
        token_length_[id] = static_cast<uint32_t>(bytes->size());
        if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
        if (!ignore_merges_ || bytes->empty()) continue;
        const std::size_t at = token_bytes_.size();
        token_bytes_ += *bytes;
        words_.insert(std::string_view(token_bytes_).substr(at), id);
    }
    for (const int32_t id : byte_ids_) complete_ = complete_ && id >= 0;
    uint32_t rank = 0;
    for (const BpeSpec::Merge& merge : spec.merges)
        merges_.insert(merge.left, merge.right, {rank++, merge.merged});
}

void Bpe::first_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
    bool open_unknown = false;  // the last symbol is an unknown that may still grow
    for (const char c : word) {
        const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
        if (id >= 0) {
            symbols.push_back({id, 1});
        } else if (unknown_ && fuse_unknown_ && open_unknown) {
            // Lengths count the characters of the byte-level alphabet, one a byte.
            ++symbols.back().length;
        } else if (unknown_) {
            symbols.push_back({*unknown_, 1});
        }
        open_unknown = id < 0 && unknown_;
    }
}

/// Repeats the merge of lowest rank, leftmost first, until none is left: O(n²) steps over a few entries.
void Bpe::merge_short(std::vector<Symbol>& symbols) const {
    std::array<MergeTable::Merge, short_word> merges;
    std::size_t n = symbols.size();
    for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
    while (n > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < n; ++i) {
            if (merges[i].rank < merges[best].rank) best = i;
        }
        if (merges[best].rank == MergeTable::no_rank) break;
        symbols[best] = {merges[best].id, symbols[best].length + symbols[best + 1].length};
        for (std::size_t i = best + 1; i + 1 < n; ++i) symbols[i] = symbols[i + 1], merges[i] = merges[i + 1];
        --n;
        if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1].id, symbols[best].id);
        if (best + 1 < n) merges[best] = merges_.find(symbols[best].id, symbols[best + 1].id);
    }
    symbols.resize(n);
}

/// The same order over a linked list, with the places of each merge kept together: a long word has far fewer
/// different merges than places, so the heap of ranks stays small and time is close to linear in the word's
/// length.
void Bpe::merge_long(std::vector<Symbol>& symbols) const {
    constexpr uint32_t none = 0xFFFFFFFF;
    UNSLOTH_CHECK(symbols.size() < none, "a word of ", symbols.size(), " bytes");
    const auto n = static_cast<uint32_t>(symbols.size());
    std::vector<uint32_t> next(n), previous(n);
    for (uint32_t i = 0; i < n; ++i) {
        previous[i] = i == 0 ? none : i - 1;
        next[i] = i + 1 == n ? none : i + 1;
    }
    MergeQueue queue;
    const auto consider = [&](uint32_t left) {
        if (left == none || next[left] == none) return;
        const MergeTable::Merge merge = merges_.find(symbols[left].id, symbols[next[left]].id);
        if (merge.rank != MergeTable::no_rank) {
            queue.push(merge, symbols[left].id, symbols[next[left]].id, left);
        }
    };
    for (uint32_t i = 0; i + 1 < n; ++i) consider(i);
    MergeQueue::Step step;
    while (queue.pop(step)) {
        // A place is stale when either side was merged since; a swallowed symbol has length 0.
        Symbol& left = symbols[step.place];
        const uint32_t right = next[step.place];
        if (left.length == 0 || left.id != step.left || right == none || symbols[right].id != step.right)
            continue;
        left = {step.merged, left.length + symbols[right].length};
        symbols[right].length = 0;
        next[step.place] = next[right];
        if (next[right] != none) previous[next[right]] = step.place;
        consider(previous[step.place]);
        consider(step.place);
    }
    std::erase_if(symbols, [](const Symbol& symbol) { return symbol.length == 0; });
}

void Bpe::encode(std::string_view word, const TokenSink& out) const {
    const auto put = [&](int32_t id, uint32_t length) {
        out.ids->push_back(id);
        if (out.lengths) out.lengths->push_back(length);
    };
    CachedWord* entry = nullptr;
    const uint64_t owner_and_size = owner_ << 16 | word.size() << 8;
    if (complete_ && word.size() <= CachedWord::max_bytes) {
        entry = &word_cache()[hash_bytes(word) % cached_words];
        const bool hit = (entry->owner_and_size & ~uint64_t{0xFF}) == owner_and_size &&
                         std::memcmp(entry->bytes, word.data(), word.size()) == 0;
        if (hit) {
            for (uint64_t i = 0; i < (entry->owner_and_size & 0xFF); ++i)
                put(entry->ids[i], token_length_[entry->ids[i]]);
            return;
        }
    }
    thread_local std::vector<Symbol> symbols;
    symbols.clear();
    const int32_t whole = ignore_merges_ ? words_.find(word) : -1;
    if (whole >= 0) {
        symbols.push_back({whole, static_cast<uint32_t>(word.size())});
    } else {
        first_symbols(word, symbols);
        if (symbols.size() <= short_word) {
            merge_short(symbols);
        } else {
            merge_long(symbols);
        }
    }
    for (const Symbol& symbol : symbols) put(symbol.id, symbol.length);
    if (entry && symbols.size() <= CachedWord::max_tokens) {
        entry->owner_and_size = owner_and_size | symbols.size();
        std::memcpy(entry->bytes, word.data(), word.size());
        for (std::size_t i = 0; i < symbols.size(); ++i) entry->ids[i] = symbols[i].id;
    }
}

}  // namespace unsloth
