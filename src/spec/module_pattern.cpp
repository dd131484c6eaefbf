#include "spec/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

/// Paths have some forty characters: patterns that make sense need a few thousand steps at most.
constexpr uint32_t most_steps = 100'000;

PCRE2_SPTR units(const std::string& text) {
    return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string message_of(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

/// What was given may be of any length.
std::string shortened(const std::string& text) {
    constexpr std::size_t longest = 200;
    return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

}  // namespace

struct ModulePattern::Code {
    explicit Code(const std::string& expression, int& error, PCRE2_SIZE& offset) {
        constexpr uint32_t whole_text = PCRE2_ANCHORED | PCRE2_ENDANCHORED;
        code = pcre2_compile(units(expression), expression.size(), PCRE2_UTF | whole_text, &error, &offset, nullptr);
        context = pcre2_match_context_create(nullptr);
        UNSLOTH_CHECK(context != nullptr, "no memory for a regular expression");
        pcre2_set_match_limit(context, most_steps);
    }
    Code(const Code&) = delete;
    Code& operator=(const Code&) = delete;
    ~Code() {
        pcre2_match_context_free(context);
        pcre2_code_free(code);
    }

    pcre2_code* code = nullptr;
    pcre2_match_context* context = nullptr;
};

ModulePattern::ModulePattern(const std::string& expression, std::string option, const std::string& shown)
    : option_(std::move(option)), shown_(shortened(shown)) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto code = std::make_shared<const Code>(expression, error, offset);
    if (code->code == nullptr)
        throw Error("option.invalid-pattern",
                    cat(option_, ": '", shown_, "' is no valid regular expression: ", message_of(error)));
    code_ = std::move(code);
}

bool ModulePattern::matches(const std::string& path) const {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                              pcre2_match_data_free);
    UNSLOTH_CHECK(data != nullptr, "no memory for matching");
    const int found = pcre2_match(code_->code, units(path), path.size(), 0, 0, data.get(), code_->context);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0)
        throw Error("option.invalid-pattern", cat(option_, ": the regular expression '", shown_,
                                                  "' cannot be matched against '", path, "': ", message_of(found)));
    return true;
}

}  // namespace unsloth::spec
