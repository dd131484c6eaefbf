// The rows that `unsloth-train tokenize` reads: texts, ids, and conversations for a template of the model.
// parser: src/tokenizer/tokenize_command.cpp src/tokenizer/chat.cpp src/tokenizer/chat_template.cpp
// parser: src/tokenizer/assistant_turns.*
// seeds: tests/golden/chat
// options: -max_len=8192 -dict=tests/fuzz/json.dict
#include <sstream>

#include "fuzz/support.h"
#include "unsloth/tokenizer/tokenize_command.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(fuzz::golden("tokenizer/qwen_small"));
    static const std::string tool_template = fuzz::golden("jinja/templates/tool_calls.jinja").string();
    for (const std::string& name : {std::string("qwen"), tool_template}) {
        std::istringstream in(std::string(fuzz::text_of(data, size)));
        std::ostringstream out;
        fuzz::accepts([&] { tokenizer::tokenize_stream(tokenizer, {.chat_template = name, .decode = true}, in, out); });
    }
    return 0;
}
