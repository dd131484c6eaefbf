#include "tokenizer/bpe.h"

#include <atomic>
#include <queue>

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
    for (const BpeSpec::Merge& merge : spec.merges) merges_.insert(merge.left, merge.right, {rank++, merge.merged});
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

/// The same order by a heap over a linked list: O(n log n), so a word of a million letters is no trap.
void Bpe::merge_long(std::vector<Symbol>& symbols) const {
    struct Candidate {
        uint32_t rank, left;
        int32_t left_id, right_id;
        bool operator<(const Candidate& other) const {  // the heap's top is the lowest rank, then the leftmost
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    constexpr uint32_t none = 0xFFFFFFFF;
    UNSLOTH_CHECK(symbols.size() < none, "a word of ", symbols.size(), " bytes");
    const auto n = static_cast<uint32_t>(symbols.size());
    std::vector<uint32_t> next(n), previous(n);
    std::vector<Candidate> initial;
    for (uint32_t i = 0; i < n; ++i) {
        previous[i] = i == 0 ? none : i - 1;
        next[i] = i + 1 == n ? none : i + 1;
        if (i + 1 == n) break;
        const uint32_t rank = merges_.find(symbols[i].id, symbols[i + 1].id).rank;
        if (rank != MergeTable::no_rank) initial.push_back({rank, i, symbols[i].id, symbols[i + 1].id});
    }
    std::priority_queue<Candidate> heap({}, std::move(initial));
    const auto consider = [&](uint32_t left) {
        if (left == none || next[left] == none) return;
        const int32_t left_id = symbols[left].id, right_id = symbols[next[left]].id;
        const uint32_t rank = merges_.find(left_id, right_id).rank;
        if (rank != MergeTable::no_rank) heap.push({rank, left, left_id, right_id});
    };
    while (!heap.empty()) {
        const Candidate top = heap.top();
        heap.pop();
        // A candidate is stale when either side was merged since: a swallowed symbol has length 0.
        const uint32_t right = next[top.left];
        if (symbols[top.left].length == 0 || symbols[top.left].id != top.left_id) continue;
        if (right == none || symbols[right].id != top.right_id) continue;
        symbols[top.left] = {merges_.find(top.left_id, top.right_id).id,
                             symbols[top.left].length + symbols[right].length};
        symbols[right].length = 0;
        next[top.left] = next[right];
        if (next[right] != none) previous[next[right]] = top.left;
        consider(previous[top.left]);
        consider(top.left);
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
            for (uint64_t i = 0; i < (entry->owner_and_size & 0xFF); ++i) put(entry->ids[i], token_length_[entry->ids[i]]);
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
