// SentencePiece's tokenizer.model, and what the tokenizer makes of the input's own last bytes.
// parser: src/tokenizer/sentencepiece_model.* src/tokenizer/llama_tokenizer.*
// seeds: tests/golden/tokenizer/spm_small tests/golden/tokenizer/spm_legacy_small
// options: -max_len=10000
#include "fuzz/tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const fuzz::Folder folder;
    const std::string_view input = fuzz::text_of(data, size);
    folder.write("tokenizer.model", input);
    std::optional<tokenizer::Tokenizer> tokenizer;
    if (!fuzz::accepts([&] { tokenizer = tokenizer::Tokenizer::load(folder.path()); })) return 0;
    fuzz::use(*tokenizer, fuzz::end_of(input));
    fuzz::use(*tokenizer, "Héllo  wörld, 日本 123\n\n <s> a");
    fuzz::look_at_tokens(*tokenizer);
    fuzz::encode_rows(*tokenizer, "alpaca", fuzz::end_of(input));
    return 0;
}
