#include "tokenizer/bpe.h"

#include <algorithm>

#include "tokenizer/byte_level.h"

namespace unsloth::tokenizer {

ByteBpe::ByteBpe(const BpeSpec& spec)
    : unknown_(spec.unknown),
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

void ByteBpe::first_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
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

void ByteBpe::encode(std::string_view word, const TokenSink& out) const {
    CachedWord* entry = complete_ ? cache_.entry(word) : nullptr;
    if (entry && cache_.holds(*entry, word)) {
        for (std::size_t i = 0; i < WordCache::tokens(*entry); ++i)
            out.put(entry->ids[i], token_length_[entry->ids[i]]);
        return;
    }
    thread_local std::vector<Symbol> symbols;
    symbols.clear();
    const int32_t whole = ignore_merges_ ? words_.find(word) : -1;
    if (whole >= 0) {
        symbols.push_back({whole, static_cast<uint32_t>(word.size())});
    } else {
        first_symbols(word, symbols);
        merge_symbols(merges_, symbols);
    }
    for (const Symbol& symbol : symbols) out.put(symbol.id, symbol.length);
    if (entry) cache_.store(*entry, word, symbols);
}

}  // namespace unsloth::tokenizer
