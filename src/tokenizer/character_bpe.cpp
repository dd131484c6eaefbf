#include "tokenizer/character_bpe.h"

#include <algorithm>
#include <unordered_set>

#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {

void CharacterBpe::CharacterTable::insert(char32_t c, int32_t id) {
    uint32_t& page = page_of_[c >> 8];
    if (page == 0) {
        page = static_cast<uint32_t>(ids_.size());
        ids_.resize(ids_.size() + 256, -1);
    }
    ids_[page + (c & 0xFF)] = id;
}

CharacterBpe::CharacterBpe(const BpeSpec& spec)
    : vocab_(spec.vocab),
      ids_(index_vocab(vocab_)),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      ignore_merges_(spec.ignore_merges),
      prefix_(spec.subword_prefix),
      suffix_(spec.end_of_word_suffix),
      merges_(spec.merges.size()) {
    for (const auto& [token, id] : vocab_) {
        if (static_cast<std::size_t>(id) >= token_length_.size()) token_length_.resize(id + 1);
        token_length_[id] = static_cast<uint32_t>(token.size());
        if (token.empty()) continue;
        const unicode::Decoded d = unicode::decode(token, 0);
        if (d.size == token.size()) characters_.insert(d.code_point, id);
    }
    if (spec.byte_fallback) {
        byte_ids_ = fallback_ids(ids_);
        all_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
    }
    uint32_t rank = 0;
    for (const BpeSpec::Merge& merge : spec.merges) merges_.insert(merge.left, merge.right, {rank++, merge.merged});
    index_segments(spec);
}

/// A merge makes a token out of its neighbouring characters, so no merge reaches over a place between two
/// characters that stand side by side in no merged token: the parts of a word on both sides are independent.
/// That holds as long as merges work on characters (not on unknown tokens or bytes of the fallback) and no
/// character is dropped.
void CharacterBpe::index_segments(const BpeSpec& spec) {
    if (!prefix_.empty() || !suffix_.empty()) return;
    if (byte_ids_.empty() ? !unknown_ : !all_bytes_) return;
    std::unordered_set<int32_t> no_characters(byte_ids_.begin(), byte_ids_.end());
    if (unknown_) no_characters.insert(*unknown_);
    std::vector<const std::string*> text_of(token_length_.size());
    for (const auto& [token, id] : vocab_) text_of[id] = &token;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (const BpeSpec::Merge& merge : spec.merges) {
        if (no_characters.count(merge.left) || no_characters.count(merge.right)) return;
        const std::string& text = *text_of[merge.merged];
        int32_t before = -1;
        for (std::size_t at = 0; at < text.size();) {
            const unicode::Decoded d = unicode::decode(text, at);
            const int32_t id = characters_.find(d.code_point);
            if (before >= 0 && id >= 0) pairs.emplace_back(before, id);
            before = id;
            at += d.size;
        }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    neighbours_ = MergeTable(pairs.size());
    for (const auto& [left, right] : pairs) neighbours_.insert(left, right, {0, left});
    segmented_ = true;
}

int32_t CharacterBpe::id_of(std::string_view character, bool first, bool last) const {
    const bool prefixed = !first && !prefix_.empty(), suffixed = last && !suffix_.empty();
    if (!prefixed && !suffixed) return characters_.find(unicode::decode(character, 0).code_point);
    std::string spelled = prefixed ? prefix_ : std::string();
    spelled += character;
    if (suffixed) spelled += suffix_;
    return ids_.find(spelled);
}

/// The symbols of a word before any merge, in the reference's order: an unknown token that waits to grow
/// comes behind the bytes of characters that could be spelled meanwhile.
void CharacterBpe::first_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
    uint32_t waiting = 0;  // bytes of the unknown token that is not written yet
    const auto write_unknown = [&] {
        if (waiting > 0) symbols.push_back({*unknown_, waiting});
        waiting = 0;
    };
    for (std::size_t at = 0; at < word.size();) {
        const uint32_t size = unicode::decode(word, at).size;
        const std::string_view character = word.substr(at, size);
        const bool first = at == 0;
        at += size;
        const bool last = at == word.size();
        const int32_t id = id_of(character, first, last);
        if (id >= 0) {
            write_unknown();
            symbols.push_back({id, size});
            continue;
        }
        if (!byte_ids_.empty()) {
            std::string spelled = first ? std::string() : prefix_;
            spelled += character;
            if (last) spelled += suffix_;
            const bool known = std::all_of(spelled.begin(), spelled.end(),
                                           [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
            if (known) {
                for (const char c : spelled) symbols.push_back({byte_ids_[static_cast<uint8_t>(c)], 1});
                continue;
            }
        }
        if (!unknown_) continue;
        if (!fuse_unknown_) write_unknown();
        waiting += size;
    }
    write_unknown();
}

/// Known characters that may merge with each other. Results come from a cache of the calling thread where
/// possible.
void CharacterBpe::encode_segment(std::string_view segment, const TokenSink& out) const {
    CachedWord* entry = cache_.entry(segment);
    if (entry && cache_.holds(*entry, segment)) {
        for (std::size_t i = 0; i < WordCache::tokens(*entry); ++i)
            out.put(entry->ids[i], token_length_[entry->ids[i]]);
        return;
    }
    thread_local std::vector<Symbol> symbols;
    symbols.clear();
    first_symbols(segment, symbols);
    merge_symbols(merges_, symbols);
    for (const Symbol& symbol : symbols) out.put(symbol.id, symbol.length);
    if (entry) cache_.store(*entry, segment, symbols);
}

/// A run of characters that are not in the vocabulary.
void CharacterBpe::encode_unknown(std::string_view characters, const TokenSink& out) const {
    if (all_bytes_) {
        for (const char c : characters) out.put(byte_ids_[static_cast<uint8_t>(c)], 1);
        return;
    }
    if (fuse_unknown_) return out.put(*unknown_, static_cast<uint32_t>(characters.size()));
    for (std::size_t at = 0; at < characters.size();) {
        const uint32_t size = unicode::decode(characters, at).size;
        out.put(*unknown_, size);
        at += size;
    }
}

void CharacterBpe::encode_segments(std::string_view word, const TokenSink& out) const {
    std::size_t begin = 0;
    int32_t before = -1;
    const auto flush = [&](std::size_t end) {
        if (begin == end) return;
        const std::string_view part = word.substr(begin, end - begin);
        if (before >= 0) {
            encode_segment(part, out);
        } else {
            encode_unknown(part, out);
        }
        begin = end;
    };
    for (std::size_t at = 0; at < word.size();) {
        const unicode::Decoded d = unicode::decode(word, at);
        const int32_t id = characters_.find(d.code_point);
        const bool joined = before >= 0 && id >= 0 ? neighbours_.find(before, id).rank == 0 : before < 0 && id < 0;
        if (!joined) flush(at);
        before = id;
        at += d.size;
    }
    flush(word.size());
}

void CharacterBpe::encode(std::string_view word, const TokenSink& out) const {
    if (ignore_merges_) {
        if (const int32_t whole = ids_.find(word); whole >= 0) {
            return out.put(whole, static_cast<uint32_t>(word.size()));
        }
    }
    if (segmented_) return encode_segments(word, out);
    std::vector<Symbol> symbols;
    first_symbols(word, symbols);
    merge_symbols(merges_, symbols);
    for (const Symbol& symbol : symbols) out.put(symbol.id, symbol.length);
}

}  // namespace unsloth::tokenizer
