#include "tokenizer/bpe.h"

#include <algorithm>
#include <unordered_set>

#include "tokenizer/pipeline.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {

void BpeSpec::index() {
    ids = StringTable(vocab.size());
    for (const auto& [token, id] : vocab) ids.insert(token, id);
}

std::vector<int32_t> BpeSpec::fallback_ids() const {
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::vector<int32_t> found;
    for (std::size_t byte = 0; byte < 256; ++byte) {
        found.push_back(ids.find(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">"));
    }
    return found;
}

Bpe::Bpe(const BpeSpec& spec)
    : reads_bytes_(spec.reads_bytes),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      ignore_merges_(spec.ignore_merges),
      characters_(reads_bytes_ ? 256 : 0x110000, -1),
      merges_(spec.merges.size()) {
    index_tokens(spec);
    if (spec.byte_fallback) byte_ids_ = spec.fallback_ids();
    all_bytes_ = !byte_ids_.empty() && std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
    cached_ = reads_bytes_;
    for (std::size_t byte = 0; byte < 256; ++byte) cached_ = cached_ && characters_[byte] >= 0;
    uint32_t rank = 0;
    for (const BpeSpec::Merge& merge : spec.merges)
        merges_.insert(pair_of(merge.left, merge.right), {rank++, merge.merged});
    if (!reads_bytes_) index_segments(spec);
}

void Bpe::index_tokens(const BpeSpec& spec) {
    if (ignore_merges_) {
        words_ = StringTable(spec.vocab.size());
        std::size_t total = 0;
        for (const auto& [token, id] : spec.vocab) total += token.size();
        texts_.reserve(total);  // views into it must stay valid: bytes are never longer than their raw form
    }
    for (const auto& [token, id] : spec.vocab) {
        const auto place = static_cast<std::size_t>(id);
        if (place >= token_length_.size()) token_length_.resize(std::max(place + 1, 2 * token_length_.size()));
        const std::optional<std::string> bytes = reads_bytes_ ? bytes_of_token(token) : token;
        if (!bytes || bytes->empty()) continue;  // no word can become this token
        token_length_[place] = static_cast<uint32_t>(bytes->size());
        if (const Unit first = unit_at(*bytes, 0); first.size == bytes->size()) characters_[first.character] = id;
        if (!ignore_merges_) continue;
        const std::size_t at = texts_.size();
        texts_ += *bytes;
        words_.insert(std::string_view(texts_).substr(at), id);
    }
}

Bpe::Unit Bpe::unit_at(std::string_view word, std::size_t at) const {
    if (reads_bytes_) return {static_cast<uint8_t>(word[at]), 1};
    const unicode::Decoded d = unicode::decode(word, at);
    return {d.code_point, d.size};
}

/// A merge makes a token out of its neighbouring characters, so no merge reaches over a place between two
/// characters that stand side by side in no merged token: the parts of a word on both sides are independent.
/// That holds as long as merges work on characters (not on unknown tokens or bytes of the fallback) and no
/// character is dropped.
void Bpe::index_segments(const BpeSpec& spec) {
    if (byte_ids_.empty() ? !unknown_ : !all_bytes_) return;
    std::unordered_set<int32_t> no_characters(byte_ids_.begin(), byte_ids_.end());
    if (unknown_) no_characters.insert(*unknown_);
    std::vector<const std::string*> text_of(token_length_.size());
    for (const auto& [token, id] : spec.vocab) text_of[static_cast<std::size_t>(id)] = &token;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (const BpeSpec::Merge& merge : spec.merges) {
        if (no_characters.count(merge.left) || no_characters.count(merge.right)) return;
        const std::string& text = *text_of[static_cast<std::size_t>(merge.merged)];
        int32_t before = -1;
        for (std::size_t at = 0; at < text.size();) {
            const Unit unit = unit_at(text, at);
            const int32_t id = characters_[unit.character];
            if (before >= 0 && id >= 0) pairs.emplace_back(before, id);
            before = id;
            at += unit.size;
        }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    neighbours_ = MergeTable(pairs.size());
    for (const auto& [left, right] : pairs) neighbours_.insert(pair_of(left, right), {0, left});
    segmented_ = cached_ = true;
}

/// False, with nothing added, where a byte has no token.
bool Bpe::spell_as_bytes(std::string_view character, std::vector<Symbol>& symbols) const {
    if (byte_ids_.empty()) return false;
    const auto id = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
    if (std::any_of(character.begin(), character.end(), [&](char c) { return id(c) < 0; })) return false;
    for (const char c : character) symbols.push_back({id(c), 1});
    return true;
}

/// The symbols of a word before any merge, in the reference's order: an unknown token that waits to grow
/// follows the bytes of characters that could be spelled meanwhile.
void Bpe::first_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
    uint32_t waiting = 0;  // bytes of the unknown token that is not written yet
    const auto write_unknown = [&] {
        if (waiting > 0) symbols.push_back({*unknown_, waiting});
        waiting = 0;
    };
    for (std::size_t at = 0; at < word.size();) {
        const Unit unit = unit_at(word, at);
        if (const int32_t id = characters_[unit.character]; id >= 0) {
            write_unknown();
            symbols.push_back({id, unit.size});
        } else if (!spell_as_bytes(word.substr(at, unit.size), symbols) && unknown_) {
            if (!fuse_unknown_) write_unknown();
            waiting += unit.size;
        }
        at += unit.size;
    }
    write_unknown();
}

/// A word, or a segment of one. Results come from a cache of the calling thread where possible.
void Bpe::encode_part(std::string_view part, const TokenSink& out) const {
    CachedWord* entry = cached_ ? cache_.entry(part) : nullptr;
    if (entry && cache_.holds(*entry, part)) {
        for (std::size_t i = 0; i < WordCache::tokens(*entry); ++i)
            out.put(entry->ids[i], token_length_[static_cast<std::size_t>(entry->ids[i])]);
        return;
    }
    constexpr std::size_t longest_kept = 4096;  // bytes of a word: a longer one's symbols are not worth their memory
    thread_local std::vector<Symbol> kept;
    std::vector<Symbol> own;
    std::vector<Symbol>& symbols = part.size() > longest_kept ? own : kept;
    symbols.clear();
    const int32_t whole = ignore_merges_ && !segmented_ ? words_.find(part) : -1;
    if (whole >= 0) {
        symbols.push_back({whole, static_cast<uint32_t>(part.size())});
    } else {
        first_symbols(part, symbols);
        merge_symbols(merges_, symbols);
    }
    for (const Symbol& symbol : symbols) out.put(symbol.id, symbol.length);
    if (entry) cache_.store(*entry, part, symbols);
}

/// A run of characters that are not in the vocabulary.
void Bpe::encode_unknown(std::string_view characters, const TokenSink& out) const {
    if (all_bytes_) {
        for (const char c : characters) out.put(byte_ids_[static_cast<uint8_t>(c)], 1);
        return;
    }
    if (fuse_unknown_) return out.put(*unknown_, static_cast<uint32_t>(characters.size()));
    for (std::size_t at = 0; at < characters.size();) {
        const uint32_t size = unit_at(characters, at).size;
        out.put(*unknown_, size);
        at += size;
    }
}

void Bpe::encode_segments(std::string_view word, const TokenSink& out) const {
    std::size_t begin = 0;
    int32_t before = -1;
    const auto flush = [&](std::size_t end) {
        if (begin == end) return;
        const std::string_view part = word.substr(begin, end - begin);
        if (before >= 0) {
            encode_part(part, out);
        } else {
            encode_unknown(part, out);
        }
        begin = end;
    };
    for (std::size_t at = 0; at < word.size();) {
        const Unit unit = unit_at(word, at);
        const int32_t id = characters_[unit.character];
        const bool joined =
            before >= 0 && id >= 0 ? neighbours_.find(pair_of(before, id)).rank == 0 : before < 0 && id < 0;
        if (!joined) flush(at);
        before = id;
        at += unit.size;
    }
    flush(word.size());
}

void Bpe::encode(std::string_view word, const TokenSink& out) const {
    if (!segmented_) return encode_part(word, out);
    const int32_t whole = ignore_merges_ ? words_.find(word) : -1;
    if (whole >= 0) return out.put(whole, static_cast<uint32_t>(word.size()));
    encode_segments(word, out);
}

}  // namespace unsloth::tokenizer
