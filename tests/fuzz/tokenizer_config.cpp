// tokenizer_config.json with its special tokens and chat templates, beside a small tokenizer.
// parser: src/tokenizer/special_tokens.* src/tokenizer/added_tokens.*
// options: -max_len=4096 -dict=tests/fuzz/tokenizer.dict
#include "fuzz/tokenizer_use.h"

namespace {

struct TokenizerFolder : unsloth::fuzz::Folder {
    explicit TokenizerFolder(const char* file) { copy(unsloth::fuzz::golden(file)); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const TokenizerFolder bpe("tokenizer/metaspace_small/tokenizer.json"),
        sentencepiece("tokenizer/spm_small/tokenizer.model");
    for (const fuzz::Folder* folder :
         {static_cast<const fuzz::Folder*>(&bpe), static_cast<const fuzz::Folder*>(&sentencepiece)}) {
        folder->write("tokenizer_config.json", fuzz::text_of(data, size));
        std::optional<tokenizer::Tokenizer> tokenizer;
        if (!fuzz::accepts([&] { tokenizer = tokenizer::Tokenizer::load(folder->path()); })) continue;
        fuzz::use(*tokenizer, "Hello, <s> world");
        for (const auto& [name, source] : tokenizer->chat_templates()) fuzz::encode_rows(*tokenizer, name, "Well.");
        fuzz::encode_rows(*tokenizer, "auto", "Well.");
    }
    return 0;
}
