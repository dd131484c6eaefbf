#include "unsloth/core/syntax.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <set>
#include <vector>

#include "unsloth/core/utf8.h"

namespace unsloth {
namespace {

bool is_letter(char c) {
    return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool is_digit(char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Reads JSON only for its errors, without recursion. Ends by throwing a SyntaxError, or at the end of the text.
class JsonProof {
  public:
    JsonProof(std::string_view text, bool comments, bool unique_keys)
        : text_(text), comments_(comments), unique_keys_(unique_keys) {}

    void read() {
        const std::size_t invalid = first_invalid_utf8(text_);
        if (invalid < text_.size()) fail(invalid, "the byte is not UTF-8");
        skip_space();
        if (at_end()) fail(0, "the text is empty");
        for (Next next = Next::value; next != Next::end;) next = step(next);
        skip_space();
        if (!at_end()) fail(at_, "the value ends before this, and nothing may follow it");
    }

  private:
    enum class Next { value, first_value, key, first_key, after_value, end };

    Next step(Next next) {
        skip_space();
        if (next == Next::after_value && open_.empty()) return Next::end;
        require_more();
        switch (next) {
            case Next::value:
                return value("a value is expected");
            case Next::first_value:
                return value("a value, or ], is expected");
            case Next::key:
                return key("a key in double quotes is expected");
            case Next::first_key:
                return key("a key in double quotes, or }, is expected");
            case Next::after_value:
                return after_value();
            case Next::end:
                break;
        }
        return Next::end;
    }

    /// Of a text that ends too early its last line is shown.
    [[noreturn]] void fail(std::size_t at, std::string words) const {
        throw SyntaxError{std::min(at, text_.find_last_not_of(" \t\r\n") + 1), std::move(words)};
    }

    bool at_end() const { return at_ >= text_.size(); }
    char here() const { return at_end() ? '\0' : text_[at_]; }
    std::string_view word() const {
        std::size_t end = at_;
        while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
        return text_.substr(at_, end - at_);
    }

    void skip_space() {
        while (!at_end()) {
            const std::string_view rest = text_.substr(at_);
            if (std::isspace(static_cast<unsigned char>(here())) != 0) {
                ++at_;
            } else if (comments_ && rest.starts_with("//")) {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else if (comments_ && rest.starts_with("/*")) {
                const std::size_t end = text_.find("*/", at_ + 2);
                if (end == std::string_view::npos) fail(at_, "the comment is not closed: */ is missing");
                at_ = end + 2;
            } else {
                break;
            }
        }
        if (here() == '#') fail(at_, comments_ ? "a comment begins with //, not with #" : "JSON has no comments");
        if (here() == '/') fail(at_, comments_ ? "a comment begins with //" : "JSON has no comments");
    }

    /// At the end of the text: the brackets that are open.
    void require_more() const {
        if (!at_end()) return;
        if (open_.empty()) fail(text_.size(), "the text ends too early");
        const std::size_t opener = open_.back();
        fail(text_.size(), cat("the text ends, and the ", text_[opener], " of line ", place_of(text_, opener).line,
                               " is not closed: ", closer(), " is missing"));
    }
    void open(std::size_t at) {
        open_.push_back(at);
        keys_.emplace_back();
    }
    void close() {
        open_.pop_back();
        keys_.pop_back();
    }
    char closer() const { return text_[open_.back()] == '{' ? '}' : ']'; }
    bool in_object() const { return !open_.empty() && text_[open_.back()] == '{'; }

    /// A value, up to the first one within it.
    Next value(const char* expected) {
        if (here() == '{' || here() == '[') {
            open(at_++);
            skip_space();
            if (here() != closer()) return in_object() ? Next::first_key : Next::first_value;
            ++at_;
            close();
        } else if (here() == '"') {
            string();
        } else if (here() == '-' || is_digit(here())) {
            number();
        } else {
            literal(expected);
        }
        return Next::after_value;
    }

    Next key(const char* expected) {
        if (here() == '\'') fail(at_, "keys stand in double quotes, not in single ones");
        if (is_letter(here())) fail(at_, cat("a key must be in double quotes: \"", word(), "\""));
        if (here() != '"') fail(at_, expected);
        const std::size_t begin = at_;
        string();
        const std::string_view name = text_.substr(begin, at_ - begin);
        if (unique_keys_ && !keys_.back().insert(name).second)
            fail(begin, cat("the key ", name, " appears twice in one object"));
        skip_space();
        require_more();
        if (here() == '=') fail(at_, "a colon separates key and value, not =");
        if (here() != ':') fail(at_, cat("a colon is expected after the key ", name.substr(0, 40)));
        ++at_;
        return Next::value;
    }

    /// What follows a value within brackets: a comma and the next one, or the end of them.
    Next after_value() {
        if (here() == closer()) {
            ++at_;
            close();
            return Next::after_value;
        }
        if (here() == '}' || here() == ']')
            fail(at_, cat(closer(), " is expected, which closes the ", text_[open_.back()], " of line ",
                          place_of(text_, open_.back()).line));
        if (here() != ',') {
            const bool value_begins = here() == '"' || here() == '{' || here() == '[' || here() == '-' ||
                                      is_letter(here()) || is_digit(here());
            fail(at_, value_begins ? "a comma is missing before this" : cat("a comma or ", closer(), " is expected"));
        }
        ++at_;
        skip_space();
        if (here() == closer()) fail(at_, cat("there is a comma before this ", closer(), ": take it out"));
        if (here() == ',') fail(at_, "there are two commas here, with nothing between them");
        return in_object() ? Next::key : Next::value;
    }

    void literal(const char* expected) {
        const std::string_view name = word();
        for (const char* known : {"true", "false", "null"})
            if (name == known) return void(at_ += name.size());
        if (name == "True" || name == "False" || name == "None" || name == "TRUE" || name == "FALSE" || name == "NULL")
            fail(at_, cat("JSON writes true, false and null, not ", name));
        if (name == "NaN" || name == "Infinity" || name == "inf" || name == "nan")
            fail(at_, cat(name, " is no number of JSON"));
        if (!name.empty()) fail(at_, cat("a text must be in double quotes: \"", name, "\""));
        if (here() == '\'') fail(at_, "texts must be in double quotes, not in single ones");
        if (here() == '+' || here() == '.') fail(at_, "a number begins with a digit or -");
        if (here() == ',' || here() == '}' || here() == ']') fail(at_, "a value is missing before this");
        fail(at_, expected);
    }

    void number() {
        const std::size_t begin = at_;
        if (here() == '-') ++at_;
        const std::size_t first = at_;
        const auto digits = [&] {
            if (!is_digit(here())) fail(at_, "a digit is expected");
            while (is_digit(here())) ++at_;
        };
        digits();
        if (text_[first] == '0' && at_ > first + 1) fail(first, "a number does not begin with 0");
        if (here() == '.') ++at_, digits();
        if (here() == 'e' || here() == 'E') {
            ++at_;
            if (here() == '+' || here() == '-') ++at_;
            digits();
        }
        if (is_letter(here())) fail(at_, "a number ends before this; texts stand in double quotes");
        const std::string shown(text_.substr(begin, at_ - begin));
        if (std::isinf(std::strtod(shown.c_str(), nullptr))) fail(begin, cat("the number ", shown, " is too large"));
    }

    /// The number of the \u0000 at `place`, -1 where there is none.
    int escaped_unit(std::size_t place) const {
        if (text_.substr(place, 2) != "\\u" || place + 6 > text_.size()) return -1;
        const std::string digits(text_.substr(place + 2, 4));
        const bool valid = std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c); });
        return valid ? std::stoi(digits, nullptr, 16) : -1;
    }

    void string() {
        const std::size_t begin = at_++;
        while (true) {
            if (at_end() || here() == '\n')
                fail(begin, at_end() ? "the text that begins here has no closing quote"
                                     : "the text that begins here has no closing quote before the line's end");
            const char c = here();
            if (c == '"') return void(++at_);
            if (static_cast<unsigned char>(c) < 0x20)
                fail(at_, c == '\t' ? "a tab within a text is written \\t"
                                    : "a control character within a text is written \\u00…");
            if (c == '\\') {
                ++at_;
                if (here() == 'u') {
                    const bool high = escaped_unit(at_ - 1) >> 10 == 0xD800 >> 10;
                    const bool low = escaped_unit(at_ + (high ? 5 : -1)) >> 10 == 0xDC00 >> 10;
                    if (escaped_unit(at_ - 1) < 0) fail(at_ - 1, "four hexadecimal digits are expected after \\u");
                    if (high != low)
                        fail(at_ - 1, "half a character: \\ud800 to \\udbff need \\udc00 to \\udfff after them");
                    if (high) at_ += 6;
                } else if (at_end() || std::string_view("\"\\/bfnrt").find(here()) == std::string_view::npos) {
                    fail(at_ - 1, "this backslash begins no known character; a backslash itself is written \\\\");
                }
            }
            ++at_;
        }
    }

    std::string_view text_;
    bool comments_, unique_keys_;
    std::size_t at_ = 0;
    std::vector<std::size_t> open_;                 ///< places of the brackets that are open
    std::vector<std::set<std::string_view>> keys_;  ///< of each
};

std::size_t line_begin(std::string_view text, std::size_t at) {
    return at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 is 0
}

std::size_t characters(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xC0) != 0x80; }));
}

}  // namespace

SyntaxError find_json_error(std::string_view text, bool comments, bool unique_keys) {
    try {
        JsonProof(text, comments, unique_keys).read();
    } catch (const SyntaxError& error) {
        return error;
    }
    return {0, "it cannot be read"};
}

TextPlace place_of(std::string_view text, std::size_t at) {
    at = std::min(at, text.size());
    const std::size_t begin = line_begin(text, at);
    const auto lines =
        static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<long>(begin), '\n'));
    return {lines + 1, characters(text.substr(begin, at - begin)) + 1};
}

std::string marked_line(std::string_view text, std::size_t at, std::string_view indent) {
    constexpr std::size_t before = 60, after = 30;  // bytes
    at = std::min(at, text.size());
    std::size_t begin = line_begin(text, at), end = std::min(text.find('\n', at), text.size());
    const auto to_character = [&](std::size_t place) {
        while (place < end && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80) ++place;
        return place;
    };
    const bool cut_before = at - begin > before, cut_after = end - at > after;
    if (cut_before) begin = to_character(at - before);
    if (cut_after) end = to_character(at + after);
    const std::string number = std::to_string(place_of(text, at).line), dots = "…";
    std::string line(text.substr(begin, end - begin));
    std::replace(line.begin(), line.end(), '\t', ' ');
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t column = characters(text.substr(begin, at - begin)) + (cut_before ? 1 : 0);
    return cat(number, " | ", cut_before ? dots : "", line, cut_after ? dots : "", "\n", indent,
               std::string(number.size(), ' '), " | ", std::string(column, ' '), "^");
}

Error not_valid_json(const std::string& source, std::string_view text) {
    const SyntaxError error = find_json_error(text);
    const TextPlace place = place_of(text, error.at);
    return Error("json.syntax",
                 cat(source, ": not valid JSON: line ", place.line, ", column ", place.column, ": ", error.words),
                 marked_line(text, error.at));
}

}  // namespace unsloth
