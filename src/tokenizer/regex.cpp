#include "tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

/// Copies a pattern, translating or refusing what Oniguruma reads in another way than PCRE2.
class Translator {
  public:
    Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

    std::string run() {
        while (at_ < in_.size()) {
            const char c = in_[at_];
            const bool starts_item = (c & 0xC0) != 0x80 && std::string_view("*+?{)").find(c) == std::string_view::npos;
            if (starts_item) item_ = out_.size();
            if (c == '\\') {
                escape(false);
            } else if (c == '[') {
                character_class();
            } else if (c == '(') {
                group();
            } else if (c == ')') {
                close_group();
            } else if (c == '{') {
                repeat();
            } else {
                take(1);
            }
        }
        return std::move(out_);
    }

  private:
    [[noreturn]] void refuse(std::string_view construct) const {
        throw Error("tokenizer.unsupported", cat(where_, ": the regular expression uses '", construct, "' at position ",
                                                 at_, ", which this program does not know: ", in_));
    }
    std::string_view rest() const { return in_.substr(at_); }
    void take(std::size_t n) {
        out_ += in_.substr(at_, n);
        at_ += n;
    }

    /// Word characters of Oniguruma: letters, marks, decimal digits, letter numbers, connecting punctuation, circled
    /// letters.
    static constexpr std::string_view word =
        R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

    /// Outside of [ ] it goes by Latin-1 below U+0100, where fractions and exponents are word characters too.
    static constexpr std::string_view more_words = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

    void escape(bool in_class) {
        if (at_ + 1 >= in_.size()) refuse("\\");
        const char c = in_[at_ + 1];
        if (c == 'p' || c == 'P') return property();
        if (c == 'u') return hexadecimal();
        if (c == 'w' && in_class) return put(std::string(word));
        const std::string words = cat(word, more_words, "]");
        if (c == 'w') return put("[" + words);
        if (c == 'W' && !in_class) return put("[^" + words);
        if (c == 'b' && !in_class)
            return put(cat("(?:(?<=[", words, ")(?![", words, ")|(?<![", words, ")(?=[", words, "))"));
        // White space, decimal digits and line feeds mean the same; \h, \R and others do not.
        const bool same = std::ispunct(static_cast<unsigned char>(c)) || c == ' ' ||
                          std::string_view("sSdDnrtf").find(c) != std::string_view::npos;
        if (!same) refuse(rest().substr(0, 2));
        take(2);
    }
    /// Writes what the two characters of an escape stand for.
    void put(const std::string& text) {
        out_ += text;
        at_ += 2;
    }

    void property() {
        const std::size_t close = rest().find('}');
        if (in_.substr(at_ + 2, 1) != "{" || close == std::string_view::npos) refuse(rest().substr(0, 3));
        static constexpr std::array known = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
                                             "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                             "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
        static constexpr std::array scripts = {"Han", "Hiragana", "Katakana", "Hangul", "Thai"};
        const std::string_view name = rest().substr(3, close - 3);
        if (std::find(scripts.begin(), scripts.end(), name) != scripts.end()) {
            // PCRE2 takes the plain name for the extended script, which has punctuation that several scripts share.
            out_ += cat(in_.substr(at_, 3), "sc:", name, "}");
            at_ += close + 1;
            return;
        }
        if (std::find(known.begin(), known.end(), name) == known.end()) refuse(rest().substr(0, close + 1));
        take(close + 1);
    }

    void hexadecimal() {
        const std::string_view digits = rest().substr(2, 4);
        if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
            refuse(rest().substr(0, 2));
        out_ += cat("\\x{", digits, "}");
        at_ += 6;
    }

    /// A set within a set is part of it; PCRE2 does not know them, so their brackets go.
    void character_class() {
        take(in_.substr(at_, 2) == "[^" ? 2 : 1);
        if (in_.substr(at_, 1) == "]") refuse("]");
        for (int inner = 0; at_ < in_.size();) {
            const std::string_view two = in_.substr(at_, 2);
            if (two == "&&") refuse("&&");
            if (two[0] == '[') {
                if (two == "[^" || two == "[:" || two == "[]") refuse(cat(two, " within [ ]"));  // such as [[:alpha:]]
                if (out_.back() == '-') refuse("-[");
                ++inner, ++at_;
            } else if (two[0] == ']') {
                if (inner-- == 0) return take(1);
                if (two.size() < 2 || in_[++at_] == '-') refuse("]-");
            } else if (two[0] == '\\') {
                escape(true);
            } else {
                take(1);
            }
        }
        refuse("[ without ]");
    }

    void group() {
        static constexpr std::array<std::string_view, 9> known = {
            "(?:", "(?i:", "(?-i:", "(?i)", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
        const bool plain = in_.substr(at_, 2) != "(?";
        if (plain || rest().substr(0, 4) != "(?i)") open_groups_.push_back(out_.size());
        if (plain) return take(1);
        for (const std::string_view opening : known) {
            if (rest().substr(0, opening.size()) == opening) return take(opening.size());
        }
        refuse(rest().substr(0, 3));
    }

    void close_group() {
        if (open_groups_.empty()) refuse(")");
        item_ = open_groups_.back();
        open_groups_.pop_back();
        take(1);
    }

    void repeat() {
        const std::size_t close = rest().find('}');
        if (close == std::string_view::npos) refuse("{");
        const std::string_view body = rest().substr(1, close - 1);
        const bool counted = !body.empty() && std::isdigit(static_cast<unsigned char>(body[0])) &&
                             body.find_first_not_of("0123456789,") == std::string_view::npos;
        if (!counted) refuse(rest().substr(0, close + 1));
        const std::string_view next = in_.substr(at_ + close + 1, 1);
        // {n,m}+ repeats once more there and is possessive here; {n}? is optional there and lazy here.
        const bool differs = next == "+" || (next == "?" && body.find(',') == std::string_view::npos);
        if (!differs) return take(close + 1);
        const std::string_view further = in_.substr(std::min(at_ + close + 2, in_.size()), 1);
        if (!further.empty() && std::string_view("*+?{").find(further) != std::string_view::npos)
            refuse(rest().substr(0, close + 3));
        out_.insert(item_, "(?:");
        out_ += cat(rest().substr(0, close + 1), ")", next);
        at_ += close + 2;
    }

    std::string_view in_;
    const std::string& where_;
    std::string out_;
    std::size_t at_ = 0;
    std::size_t item_ = 0;                  ///< where in `out_` what a repetition would repeat begins
    std::vector<std::size_t> open_groups_;  ///< where they begin in `out_`
};

template <auto free>
struct Free {
    void operator()(auto* object) const { free(object); }
};

/// What a thread needs to match. PCRE2's own default stack is 32 KiB, too little for long nested repeats.
struct ThreadState {
    static constexpr std::size_t most_bytes = std::size_t{16} << 20;  ///< a row's memory counts no more (row_errors.h)
    std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
    std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack{
        pcre2_jit_stack_create(64 << 10, most_bytes, nullptr)};
    std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};

    ThreadState() {
        UNSLOTH_CHECK(data && context, "no memory for matching");
        pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
        pcre2_set_heap_limit(context.get(), most_bytes >> 10);
    }
};

std::string message_of(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Regex::Regex(std::string_view source, const std::string& where) : source_(source), where_(where) {
    const std::string pattern = Translator(source, where).run();
    const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context{
        pcre2_compile_context_create(nullptr)};
    UNSLOTH_CHECK(context, "no memory for a regular expression");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    // Ruby's ^ and $ always work by line, and its groups with names or numbers are not known here.
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset,
                              context.get()),
                pcre2_code_free);
    if (!code_) {
        throw Error("tokenizer.bad-file", cat(where_, ": the regular expression is not valid at position ", offset,
                                              " (", message_of(error), "): ", pattern));
    }
    // Where a platform has no JIT, the interpreter gives the same matches.
    compiled_to_machine_code_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

bool Regex::search(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const {
    thread_local const ThreadState thread;
    // Enough for patterns that look at each character a few times, too little for exponential ones to hang.
    constexpr std::size_t steps_per_byte = 16, least = 10'000'000, most = 0xFFFFFFFF;
    pcre2_set_match_limit(thread.context.get(),
                          static_cast<uint32_t>(std::clamp(text.size() * steps_per_byte, least, most)));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const auto match = compiled_to_machine_code_ ? pcre2_jit_match : pcre2_match;
    const int found =
        match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, thread.data.get(), thread.context.get());
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0) {
        throw Error("tokenizer.gave-up", cat(where_, ": the regular expression gave up on a text of ", text.size(),
                                             " bytes (", message_of(found), ")"));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(thread.data.get());
    begin = range[0];
    end = range[1];
    return true;
}

}  // namespace unsloth::tokenizer
