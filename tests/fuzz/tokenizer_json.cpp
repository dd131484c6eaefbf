// tokenizer.json, and what the tokenizer that it describes makes of the input's own last bytes.
// parser: src/tokenizer/tokenizer_json.cpp src/tokenizer/pipeline* src/tokenizer/merges.* src/tokenizer/bpe.*
// seeds: tests/golden/tokenizer
// options: -max_len=20000 -dict=tests/fuzz/tokenizer.dict
#include "fuzz/tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const fuzz::Folder folder;
    const std::string_view input = fuzz::text_of(data, size);
    folder.write("tokenizer.json", input);
    std::optional<tokenizer::Tokenizer> tokenizer;
    if (!fuzz::accepts([&] { tokenizer = tokenizer::Tokenizer::load(folder.path()); })) return 0;
    fuzz::use(*tokenizer, fuzz::end_of(input));
    fuzz::use(*tokenizer, "Héllo  wörld, 日本 123\n\n <s> a");
    fuzz::look_at_tokens(*tokenizer);
    fuzz::encode_rows(*tokenizer, "alpaca", fuzz::end_of(input));
    return 0;
}
