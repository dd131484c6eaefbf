#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

using Kind = Token::Kind;

/// Line ends as \n, without the one at the very end.
std::string normalized(std::string_view source) {
    std::string out = text::replace(text::replace(source, "\r\n", "\n", -1), "\r", "\n", -1);
    if (out.ends_with('\n')) out.pop_back();
    return out;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(normalized(source)) {}

    std::vector<Token> run() {
        try {
            while (at_ < source_.size()) outside();
        } catch (Failure& failure) {
            failure.column = column_;
            throw;
        }
        add(Kind::end, "");
        return std::move(tokens_);
    }

  private:
    std::string_view rest() const { return std::string_view(source_).substr(at_); }
    bool sees(std::string_view text) const { return rest().substr(0, text.size()) == text; }
    char at(std::size_t position) const { return position < source_.size() ? source_[position] : '\0'; }
    /// The - or + of a tag's begin or end.
    char sign_at(std::size_t position) const {
        return at(position) == '-' || at(position) == '+' ? at(position) : '\0';
    }

    /// Lines and columns are counted as the position moves, never twice.
    void advance_to(std::size_t position) {
        const std::string_view passed = std::string_view(source_).substr(at_, position - at_);
        const std::size_t end_of_line = passed.rfind('\n');
        if (end_of_line != passed.npos) column_ = 1;
        column_ += static_cast<int>(text::length(passed.substr(end_of_line + 1)));  // npos + 1 is 0
        line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                             source_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
        line_starts_ = position > at_ ? source_[position - 1] == '\n' : line_starts_;
        at_ = position;
    }
    void advance(std::size_t bytes) { advance_to(at_ + bytes); }
    std::size_t after_space(std::size_t position) const {
        const std::string_view left = std::string_view(source_).substr(position);
        return source_.size() - text::strip(left, text::Side::left).size();
    }
    void skip_space() { advance_to(after_space(at_)); }

    void add(Kind kind, std::string value) { tokens_.push_back({kind, line_, std::move(value), {}, column_}); }

    void outside() {
        std::size_t tag = source_.find('{', at_);
        while (tag != std::string::npos && std::string_view("{%#").find(at(tag + 1)) == std::string_view::npos)
            tag = source_.find('{', tag + 1);
        if (tag == std::string::npos) {
            add(Kind::data, std::string(rest()));
            return advance_to(source_.size());
        }
        const char type = at(tag + 1), sign = sign_at(tag + 2);
        const std::size_t after = tag + (sign == '\0' ? 2 : 3);
        add_data(std::string_view(source_).substr(at_, tag - at_), sign, type == '{');
        advance_to(tag);
        if (type == '#') return comment(after);
        add(type == '{' ? Kind::variable_begin : Kind::block_begin, type == '{' ? "{{" : "{%");
        advance_to(after);
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

    /// The position after "%}", "-%}" and "+%}" (or "#}") at `position` and after what they strip; 0 without one.
    std::size_t after_end(std::size_t position, char type) const {
        const char sign = sign_at(position);
        const std::size_t end = position + (sign == '\0' ? 0 : 1);
        if (at(end) != type || at(end + 1) != '}') return 0;
        if (sign == '-') return after_space(end + 2);
        return end + 2 + (at(end + 2) == '\n' && sign != '+' ? 1 : 0);  // trim_blocks
    }

    void comment(std::size_t position) {
        if (position == source_.size()) return advance_to(position);  // Jinja does not mind an empty one
        for (; position < source_.size(); ++position) {
            if (const std::size_t after = after_end(position, '#')) return advance_to(after);
        }
        throw Failure("missing end of comment tag", line_);
    }

    void inside(bool variable) {
        std::vector<char> open;
        for (;;) {
            if (at_ >= source_.size()) return;  // the parser says what is missing
            if (open.empty() && end_of_tag(variable)) return;
            if (const std::size_t next = after_space(at_); next != at_) {
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
            add(Kind::variable_end, "}}");
            advance(minus ? 3 : 2);
            if (minus) skip_space();
            return true;
        }
        const std::size_t after = after_end(at_, '%');
        if (after == 0) return false;
        add(Kind::block_end, "%}");
        advance_to(after);
        return true;
    }

    static bool decimal(char c) { return c >= '0' && c <= '9'; }

    /// Whole decimal numbers.
    bool number() {
        if (!decimal(at(at_))) return false;
        Integer value = 0;
        std::size_t end = at_;
        for (; end < source_.size() && decimal(source_[end]); ++end) {
            if (end - at_ == 38) throw Failure("integers of more than 38 digits are not supported", line_);
            value = 10 * value + (source_[end] - '0');
        }
        const bool subscript = at_ > 0 && source_[at_ - 1] == '.';  // list.0
        const char next = end < source_.size() ? source_[end] : '\0';
        const bool fraction = next == '.' && end + 1 < source_.size() && decimal(source_[end + 1]);
        const bool continues =
            next == '_' || std::string_view("xobe").find(static_cast<char>(next | 0x20)) != std::string_view::npos;
        if ((fraction && !subscript) || (next != '\0' && continues))
            throw Failure("numbers other than whole decimal ones are not supported in chat templates", line_);
        add(Kind::integer, "");
        tokens_.back().number = value;
        advance_to(end);
        return true;
    }

    bool name() {
        std::size_t end = at_;
        while (end < source_.size()) {
            const unicode::Decoded d = unicode::decode(source_, end);
            if (d.code_point != '_' && !unicode::is_word(d.code_point)) break;
            end += d.size;
        }
        if (end == at_) return false;
        const std::string value = source_.substr(at_, end - at_);
        add(Kind::name, value);
        advance_to(end);
        return true;
    }

    bool string() {
        const char quote = at(at_);
        if (quote != '\'' && quote != '"') return false;
        std::size_t end = at_ + 1;
        while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
        if (end >= source_.size()) return false;
        add(Kind::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
        advance_to(end + 1);
        return true;
    }

    /// Python's escapes; an unknown one stays as it is.
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
            } else if (c == 'x' || c == 'u' || c == 'U') {
                i = hexadecimal_escape(s, i, out);
            } else if (decimal(c) || c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
                const std::size_t size = unicode::decode(s, i).size;
                throw Failure(cat("the escape \\", s.substr(i, size), " is not supported in chat templates"), line_);
            } else {
                out += '\\';
            }
        }
        return out;
    }

    std::size_t hexadecimal_escape(std::string_view s, std::size_t i, std::string& out) const {
        const std::size_t count = s[i] == 'x' ? 2 : s[i] == 'u' ? 4 : 8;
        const std::string_view digits = s.substr(i + 1, count);
        uint32_t value = 0;
        const char* const end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
        if (end != digits.data() + count) throw Failure(cat("truncated \\", s[i], " escape in a string"), line_);
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
    int line_ = 1, column_ = 1;
    bool line_starts_ = true;  ///< what was read last ended a line
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
    return Lexer(source).run();
}

}  // namespace unsloth::tokenizer::jinja
