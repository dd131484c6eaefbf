#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

using Kind = Token::Kind;

/// Line ends as \n, without the one at the very end.
std::string normalized(std::string_view source) {
    std::string out;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r') {
            out += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        } else {
            out += source[i];
        }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(normalized(source)) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) outside();
        add(Kind::end, "");
        return std::move(tokens_);
    }

  private:
    std::string_view rest() const { return std::string_view(source_).substr(at_); }
    bool sees(std::string_view text) const { return rest().substr(0, text.size()) == text; }
    char peek(std::size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

    /// Lines are counted as the position moves, never twice.
    void advance_to(std::size_t position) {
        line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                             source_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
        line_starts_ = position > at_ ? source_[position - 1] == '\n' : line_starts_;
        at_ = position;
    }
    void advance(std::size_t bytes) { advance_to(at_ + bytes); }
    std::size_t behind_space(std::size_t position) const {
        const std::string_view left = std::string_view(source_).substr(position);
        return source_.size() - text::strip(left, text::Side::left).size();
    }
    void skip_space() { advance_to(behind_space(at_)); }

    void add(Kind kind, std::string value) { tokens_.push_back({kind, line_, std::move(value), {}}); }

    void outside() {
        std::size_t tag = at_;
        do {
            tag = source_.find('{', tag);
            if (tag == std::string::npos) {
                add(Kind::data, std::string(rest()));
                advance_to(source_.size());
                return;
            }
            ++tag;
        } while (tag >= source_.size() || (source_[tag] != '{' && source_[tag] != '%' && source_[tag] != '#'));
        --tag;
        const char type = source_[tag + 1];
        std::size_t behind = tag + 2;
        char sign = behind < source_.size() ? source_[behind] : '\0';
        if (sign == '-' || sign == '+') {
            ++behind;
        } else {
            sign = '\0';
        }
        add_data(std::string_view(source_).substr(at_, tag - at_), sign, type == '{');
        advance_to(tag);
        if (type == '#') return comment(behind);
        if (const std::size_t raw = raw_begin(behind); type == '%' && raw != 0) return raw_block(raw);
        add(type == '{' ? Kind::variable_begin : Kind::block_begin, "");
        advance_to(behind);
        inside(type == '{');
    }

    /// Template text in front of a tag, stripped as the tag's sign says.
    void add_data(std::string_view data, char sign, bool variable) {
        if (sign == '-') {
            data = text::strip(data, text::Side::right);
        } else if (sign != '+' && !variable) {              // lstrip_blocks
            const std::size_t line = data.rfind('\n') + 1;  // npos + 1 is 0
            if ((line > 0 || line_starts_) && text::strip(data.substr(line), text::Side::left).empty())
                data = data.substr(0, line);
        }
        if (!data.empty()) add(Kind::data, std::string(data));
    }

    /// Behind "%}", "-%}" and "+%}" (or "#}") at `position`, with what they take along; 0 without one.
    std::size_t behind_end(std::size_t position, char type) const {
        const char sign = position < source_.size() ? source_[position] : '\0';
        const bool signed_end = sign == '-' || sign == '+';
        const std::size_t end = position + (signed_end ? 1 : 0);
        if (end + 1 >= source_.size() || source_[end] != type || source_[end + 1] != '}') return 0;
        if (sign == '-') return behind_space(end + 2);
        const bool line_end = end + 2 < source_.size() && source_[end + 2] == '\n';  // trim_blocks
        return end + 2 + (line_end && sign != '+' ? 1 : 0);
    }

    void comment(std::size_t position) {
        if (position == source_.size()) return advance_to(position);  // Jinja does not mind an empty one
        for (; position < source_.size(); ++position) {
            if (const std::size_t behind = behind_end(position, '#')) return advance_to(behind);
        }
        throw Failure("missing end of comment tag", line_);
    }

    /// Behind "raw %}", or 0 where that does not stand.
    std::size_t raw_begin(std::size_t position) const {
        position = behind_space(position);
        if (source_.compare(position, 3, "raw") != 0) return 0;
        position = behind_space(position + 3);
        if (source_.compare(position, 2, "%}") == 0) return position + 2;
        return source_.compare(position, 3, "-%}") == 0 ? behind_space(position + 3) : 0;
    }

    void raw_block(std::size_t begin) {
        const int first_line = line_;
        advance_to(begin);
        if (begin == source_.size()) return;
        for (std::size_t at = begin; (at = source_.find("{%", at)) != std::string::npos; ++at) {
            const char sign = at + 2 < source_.size() ? source_[at + 2] : '\0';
            const bool has_sign = sign == '-' || sign == '+';
            std::size_t word = behind_space(at + 2 + (has_sign ? 1 : 0));
            if (source_.compare(word, 6, "endraw") != 0) continue;
            const std::size_t behind = behind_end(behind_space(word + 6), '%');
            if (behind == 0) continue;
            add_data(std::string_view(source_).substr(begin, at - begin), has_sign ? sign : '\0', false);
            return advance_to(behind);
        }
        throw Failure("missing end of raw directive", first_line);
    }

    void inside(bool variable) {
        std::vector<char> open;
        for (;;) {
            if (at_ >= source_.size()) return;  // the parser says what is missing
            if (open.empty() && end_of_tag(variable)) return;
            if (const std::size_t next = behind_space(at_); next != at_) {
                advance_to(next);
            } else if (!number() && !name() && !string()) {
                operation(open);
            }
        }
    }

    bool end_of_tag(bool variable) {
        if (variable) {
            const bool minus = sees("-}}");
            if (!minus && !sees("}}")) return false;
            add(Kind::variable_end, "");
            advance(minus ? 3 : 2);
            if (minus) skip_space();
            return true;
        }
        const std::size_t behind = behind_end(at_, '%');
        if (behind == 0) return false;
        add(Kind::block_end, "");
        advance_to(behind);
        return true;
    }

    /// Digits with single underscores between them from `position`; the position behind them.
    template <class Digit>
    std::size_t digits(std::size_t position, Digit digit) const {
        const auto is_digit = [&](std::size_t i) { return i < source_.size() && digit(source_[i]); };
        if (!is_digit(position)) return position;
        while (is_digit(position) || (position < source_.size() && source_[position] == '_' && is_digit(position + 1) &&
                                      is_digit(position - 1)))
            ++position;
        return position;
    }

    static bool decimal(char c) { return c >= '0' && c <= '9'; }

    bool number() {
        if (!decimal(peek())) return false;
        return floating() || integer();
    }

    bool floating() {
        if (at_ > 0 && source_[at_ - 1] == '.') return false;
        const std::size_t whole = digits(at_, decimal);
        std::size_t end = whole;
        if (end < source_.size() && source_[end] == '.') {
            const std::size_t fraction = digits(end + 1, decimal);
            if (fraction > end + 1) end = fraction;
        }
        std::size_t exponent = end;
        if (exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
            ++exponent;
            if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
            const std::size_t behind = digits(exponent, decimal);
            if (behind > exponent) end = behind;
        }
        if (end == whole) return false;
        std::string literal = source_.substr(at_, end - at_);
        std::erase(literal, '_');
        add(Kind::floating, literal);
        tokens_.back().number = std::strtod(literal.c_str(), nullptr);
        advance_to(end);
        return true;
    }

    bool integer() {
        int base = 10;
        std::size_t begin = at_, end = 0;
        const char prefix = static_cast<char>(peek(1) | 0x20);
        const auto below = [](int limit) { return [limit](char c) { return c >= '0' && c < '0' + limit; }; };
        const auto hexadecimal = [](char c) { return decimal(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); };
        if (peek() == '0' && (prefix == 'b' || prefix == 'o' || prefix == 'x')) {
            base = prefix == 'b' ? 2 : prefix == 'o' ? 8 : 16;
            begin = at_ + (peek(2) == '_' ? 3 : 2);
            end = base == 16 ? digits(begin, hexadecimal) : digits(begin, below(base));
            if (end == begin) base = 10;
        }
        if (base == 10) {
            begin = at_;
            end = digits(at_, peek() == '0' ? +[](char c) { return c == '0'; } : +decimal);
        }
        add(Kind::integer, "");
        tokens_.back().number = parse(std::string_view(source_).substr(begin, end - begin), base);
        advance_to(end);
        return true;
    }

    Value parse(std::string_view literal, int base) const {
        Integer value = 0;
        for (const char c : literal) {
            if (c == '_') continue;
            const int digit = decimal(c) ? c - '0' : (c | 0x20) - 'a' + 10;
            if (__builtin_mul_overflow(value, Integer{base}, &value) ||
                __builtin_add_overflow(value, Integer{digit}, &value))
                throw Failure("integers of more than 127 bits are not supported", line_);
        }
        return value;
    }

    bool name() {
        std::size_t end = at_;
        while (end < source_.size()) {
            const unicode::Decoded d = unicode::decode(source_, end);
            if (!text::is_word(d.code_point)) break;
            end += d.size;
        }
        if (end == at_) return false;
        const std::string value = source_.substr(at_, end - at_);
        if (!text::has_property(value, "identifier")) throw Failure("invalid character in identifier", line_);
        add(Kind::name, value);
        advance_to(end);
        return true;
    }

    bool string() {
        const char quote = peek();
        if (quote != '\'' && quote != '"') return false;
        std::size_t end = at_ + 1;
        while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
        if (end >= source_.size()) return false;
        add(Kind::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
        advance_to(end + 1);
        return true;
    }

    /// Python's escapes; an unknown one stays as it is, and so does a backslash in front of a character
    /// beyond ASCII, which Jinja turns into that character's own escape first.
    std::string unescaped(std::string_view s) const {
        std::string out;
        for (std::size_t i = 0; i < s.size();) {
            if (s[i] != '\\') {
                out += s[i++];
                continue;
            }
            const char c = s[++i];
            static constexpr std::string_view letters = "abfnrtv\\'\"";
            static constexpr std::string_view meanings = "\a\b\f\n\r\t\v\\'\"";
            if (const std::size_t at = letters.find(c); at != letters.npos) {
                out += meanings[at];
                ++i;
            } else if (c == '\n') {
                ++i;
            } else if (c >= '0' && c <= '7') {
                char32_t value = 0;
                for (int n = 0; n < 3 && i < s.size() && s[i] >= '0' && s[i] <= '7'; ++n)
                    value = value * 8 + static_cast<char32_t>(s[i++] - '0');
                unicode::append(out, value);
            } else if (c == 'x' || c == 'u' || c == 'U') {
                i = hexadecimal_escape(s, i, out);
            } else if (c == 'N') {
                throw Failure("\\N{...} escapes are not supported: write the character itself", line_);
            } else if (static_cast<unsigned char>(c) >= 0x80) {
                const unicode::Decoded d = unicode::decode(s, i);
                char buffer[16];
                std::snprintf(buffer, sizeof buffer,
                              d.code_point < 0x100     ? "\\x%02x"
                              : d.code_point < 0x10000 ? "\\u%04x"
                                                       : "\\U%08x",
                              static_cast<unsigned>(d.code_point));
                out += buffer;
                i += d.size;
            } else {
                out += '\\';
            }
        }
        return out;
    }

    std::size_t hexadecimal_escape(std::string_view s, std::size_t i, std::string& out) const {
        const std::size_t count = s[i] == 'x' ? 2 : s[i] == 'u' ? 4 : 8;
        char32_t value = 0;
        for (std::size_t n = 1; n <= count; ++n) {
            const char c = i + n < s.size() ? s[i + n] : '\0';
            const bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
            if (!letter && !decimal(c)) throw Failure(cat("truncated \\", s[i], " escape in a string"), line_);
            value = value * 16 + static_cast<char32_t>(letter ? (c | 0x20) - 'a' + 10 : c - '0');
        }
        if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
            throw Failure(cat("\\", s[i], " escape of something that is no character"), line_);
        unicode::append(out, value);
        return i + 1 + count;
    }

    void operation(std::vector<char>& open) {
        static constexpr std::array<std::string_view, 26> operators = {
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
        const auto found =
            std::find_if(operators.begin(), operators.end(), [&](std::string_view op) { return sees(op); });
        if (found == operators.end()) {
            const std::size_t size = unicode::decode(source_, at_).size;
            throw Failure(cat("unexpected char ", text::repr(source_.substr(at_, size))), line_);
        }
        const char c = (*found)[0];
        if (c == '(' || c == '[' || c == '{') {
            open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
        } else if (c == ')' || c == ']' || c == '}') {
            if (open.empty()) throw Failure(cat("unexpected '", c, "'"), line_);
            if (open.back() != c) throw Failure(cat("unexpected '", c, "', expected '", open.back(), "'"), line_);
            open.pop_back();
        }
        add(Kind::op, std::string(*found));
        advance(found->size());
    }

    std::string source_;
    std::size_t at_ = 0;
    int line_ = 1;
    bool line_starts_ = true;  ///< what was read last ended a line
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
    return Lexer(source).run();
}

}  // namespace unsloth::tokenizer::jinja
