// Any bytes as a text, through the small tokenizers of tests/golden.
// parser: src/tokenizer/tokenizer.cpp src/tokenizer/pipeline.* src/tokenizer/regex.* src/tokenizer/unicode.*
// seeds: tests/golden/jinja/templates
// options: -max_len=512
#include "fuzz/tokenizer_use.h"
#include "unsloth/core/utf8.h"

namespace {

using unsloth::tokenizer::Tokenizer;

std::vector<Tokenizer> load(std::initializer_list<const char*> names) {
    std::vector<Tokenizer> all;
    for (const char* name : names)
        all.push_back(Tokenizer::load(unsloth::fuzz::golden(unsloth::cat("tokenizer/", name))));
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const auto all = load({"llama3_small", "gpt2_small", "qwen_small", "llama2_small", "mistral_small",
                                  "metaspace_small", "unknown_small", "spm_small", "spm_legacy_small"});
    const std::string_view text = fuzz::text_of(data, size);
    for (const Tokenizer& tokenizer : all) fuzz::use(tokenizer, text);
    // Added tokens may take the spaces around them; without any, the first, which works on bytes, gives every text
    // back.
    const bool is_plain = first_invalid_utf8(text) == size && text.find('<') == std::string_view::npos;
    const std::string back = all[0].decode(all[0].encode(text, false), false);
    fuzz::require(!is_plain || back == text, "a text changes");
    return 0;
}
