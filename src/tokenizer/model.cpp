#include "tokenizer/model.h"

#include "tokenizer/bpe.h"
#include "tokenizer/character_bpe.h"

namespace unsloth::tokenizer {

std::unique_ptr<const Model> make_model(const BpeSpec& spec) {
    if (spec.reads_bytes) return std::make_unique<ByteBpe>(spec);
    return std::make_unique<CharacterBpe>(spec);
}

StringTable index_vocab(const std::vector<std::pair<std::string, int32_t>>& vocab) {
    StringTable ids(vocab.size());
    for (const auto& [token, id] : vocab) ids.insert(token, id);
    return ids;
}

std::vector<int32_t> fallback_ids(const StringTable& vocab) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::vector<int32_t> ids;
    for (std::size_t byte = 0; byte < 256; ++byte) {
        ids.push_back(vocab.find(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">"));
    }
    return ids;
}

}  // namespace unsloth::tokenizer
