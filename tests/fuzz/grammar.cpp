// Schemas and regular expressions of requests: compiled, and texts drawn from what they allow. The first byte says
// which. parser: src/grammar/* options: -max_len=2048 -dict=tests/fuzz/json.dict
#include <nlohmann/json.hpp>
#include <random>

#include "fuzz/support.h"
#include "unsloth/grammar/matcher.h"

namespace {

using namespace unsloth;

std::shared_ptr<const grammar::Vocabulary> every_byte() {
    std::vector<std::string> bytes;
    for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
    for (const char* text : {"{\"", "\": ", "}}", "null", "\xC3\xA9", "\\u00"}) bytes.emplace_back(text);
    return std::make_shared<const grammar::Vocabulary>(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    static const auto& vocabulary = *new auto(every_byte());
    if (size == 0) return 0;
    const bool is_regex = data[0] % 2 == 1;
    const grammar::Part part{is_regex ? grammar::Part::Kind::regex : grammar::Part::Kind::json_schema,
                             std::string(fuzz::text_of(data, size).substr(1))};
    std::shared_ptr<const grammar::Grammar> compiled;
    try {
        compiled = std::make_shared<const grammar::Grammar>(grammar::Pattern{.alternatives = {{part}}});
    } catch (const grammar::Refused&) {
        return 0;
    }
    grammar::Matcher matcher(std::make_shared<grammar::MaskCache>(compiled, vocabulary));
    std::mt19937 random(data[0]);
    std::string text;
    for (int step = 0; step < 40; ++step) {
        if (matcher.may_end() && !is_regex)
            fuzz::require(!nlohmann::json::parse(text, nullptr, false).is_discarded(),
                          "a text that is no JSON is allowed");
        const std::span<const uint32_t> mask = matcher.allowed();
        std::vector<int32_t> ids;
        for (int32_t id = 0; id < vocabulary->size(); ++id)
            if ((mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1U) != 0) ids.push_back(id);
        if (ids.empty()) break;
        const int32_t id = ids[random() % ids.size()];
        fuzz::require(matcher.advance(id), "a token that is allowed does not fit");
        text += vocabulary->bytes(id);
    }
    return 0;
}
