#include "unsloth/data/answer_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

/// Of a text: answers have some thousand characters, and patterns that make sense need a few steps for each.
constexpr uint32_t most_steps = 4'000'000;
constexpr uint32_t most_kib = 16 << 10;

template <class Value, void (*free)(Value*)>
struct Free {
    void operator()(Value* value) const { free(value); }
};
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data, pcre2_match_data_free>>;

PCRE2_SPTR units(const std::string& text) {
    return reinterpret_cast<PCRE2_SPTR>(text.data());
}

/// Called at each pattern item that the matcher reaches: the only count that carries over from one search to the next.
int count_step(pcre2_callout_block*, void* steps) {
    return ++*static_cast<uint32_t*>(steps) > most_steps ? PCRE2_ERROR_MATCHLIMIT : 0;
}

}  // namespace

struct AnswerPattern::Code {
    pcre2_code* code = nullptr;
    Code() = default;
    Code(const Code&) = delete;
    Code& operator=(const Code&) = delete;
    ~Code() { pcre2_code_free(code); }
};

AnswerPattern::AnswerPattern(const std::string& expression, const std::string& option) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto code = std::make_shared<Code>();
    code->code =
        pcre2_compile(units(expression), expression.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C,
                      &error, &offset, nullptr);
    if (code->code == nullptr) {
        std::array<PCRE2_UCHAR, 256> text{};
        pcre2_get_error_message(error, text.data(), text.size());
        throw Error("option.invalid-pattern",
                    cat(option, ": '", expression, "' is no valid regular expression, at character ", offset, ": ",
                        reinterpret_cast<const char*>(text.data())));
    }
    code_ = std::move(code);
}

AnswerPattern::Found AnswerPattern::find_last(const std::string& text) const {
    const MatchContext context(pcre2_match_context_create(nullptr));
    const MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr));
    UNSLOTH_CHECK(context && data, "no memory for matching");
    uint32_t steps = 0;
    pcre2_set_callout(context.get(), count_step, &steps);
    pcre2_set_match_limit(context.get(), most_steps);
    pcre2_set_heap_limit(context.get(), most_kib);
    Found found;
    for (PCRE2_SIZE from = 0; from <= text.size();) {
        const int groups = pcre2_match(code_->code, units(text), text.size(), from, 0, data.get(), context.get());
        if (groups == PCRE2_ERROR_NOMATCH) break;
        if (groups < 0) return {std::nullopt, /*gave_up=*/true};
        const PCRE2_SIZE* const at = pcre2_get_ovector_pointer(data.get());
        const std::size_t group = groups > 1 && at[2] != PCRE2_UNSET ? 2 : 0;
        found.text = text.substr(at[group], at[group + 1] - at[group]);
        const std::size_t next = std::max<std::size_t>(at[1], from);
        from = next + (at[0] == at[1] || next == from ? 1 : 0);  // also past an empty match
        while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
    }
    return found;
}

}  // namespace unsloth::data
