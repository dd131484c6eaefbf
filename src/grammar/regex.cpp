// Regular expressions: the part of ECMAScript's and Python's that an automaton has.
#include <algorithm>
#include <optional>

#include "grammar/nodes.h"
#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"

namespace unsloth::grammar {
namespace {

constexpr std::size_t longest_pattern = 16'384;
constexpr int deepest_group = 64;
constexpr int64_t most_repeats = 10'000;

const CodePoints digits = {{'0', '9'}};
const CodePoints word_characters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints spaces = {{'\t', '\r'}, {' ', ' '}};

[[noreturn]] void refuse_regex(const std::string& why) {
    throw Refused(cat("the regular expression has ", why));
}

class RegexParser {
  public:
    RegexParser(Builder& builder, std::vector<uint32_t> pattern, Spelling spelling)
        : builder_(builder), pattern_(std::move(pattern)), spelling_(spelling) {}

    /// `outside`: what may stand on both sides of a match that is not anchored; -1: nothing.
    Piece parse(bool whole) {
        std::vector<Piece> all;
        do {
            const bool begins = take('^');
            Piece one = sequence(0);
            const bool ends = take('$');
            if (!whole && !begins) one = builder_.sequence(anything(), one);
            if (!whole && !ends) one = builder_.sequence(one, anything());
            all.push_back(one);
        } while (take('|'));
        if (at_ < pattern_.size()) refuse_regex("an unmatched ')'");
        return all.size() == 1 ? all.front() : builder_.either(all);
    }

  private:
    bool ended() const { return at_ == pattern_.size(); }
    bool sees(uint32_t c) const { return !ended() && pattern_[at_] == c; }
    bool take(uint32_t c) {
        if (!sees(c)) return false;
        ++at_;
        return true;
    }
    uint32_t next(const char* missing) {
        if (ended()) refuse_regex(cat("no end: ", missing, " is missing"));
        return pattern_[at_++];
    }
    Piece of(const CodePoints& points) {
        const CodePoints clean = normalised(points);
        if (clean.empty()) refuse_regex("a class without characters");
        const Piece piece{builder_.node(), builder_.node()};
        spell(builder_, piece.from, clean, spelling_, piece.to);
        return piece;
    }
    Piece anything() { return builder_.any_number(of({{0, last_code_point}})); }

    Piece alternatives(int depth) {
        if (depth > deepest_group) refuse_regex(cat("groups deeper than ", deepest_group));
        std::vector<Piece> all = {sequence(depth)};
        while (take('|')) all.push_back(sequence(depth));
        return all.size() == 1 ? all.front() : builder_.either(all);
    }

    Piece sequence(int depth) {
        Piece all = builder_.empty();
        while (!ended() && !sees('|') && !sees(')')) {
            if (sees('$') && depth == 0 && (at_ + 1 == pattern_.size() || pattern_[at_ + 1] == '|')) break;
            all = builder_.sequence(all, quantified(depth));
        }
        return all;
    }

    /// An atom is parsed again for each repetition: nodes are not shared.
    Piece quantified(int depth) {
        const std::size_t begin = at_;
        Piece once = atom(depth);
        const std::size_t end = at_;
        int64_t least = 1, most = 1;
        if (take('*')) {
            least = 0, most = -1;
        } else if (take('+')) {
            most = -1;
        } else if (take('?')) {
            least = 0;
        } else if (!sees('{') || !bounds(least, most)) {
            return once;
        }
        take('?');  // which match is preferred makes no difference
        if (sees('+')) refuse_regex("a possessive quantifier");
        if (sees('*') || sees('?') || sees('{')) refuse_regex("a quantifier after a quantifier");
        if (least == 0 && most == -1) return builder_.any_number(once);
        if (least == 0 && most == 1) return builder_.optional(once);
        const std::size_t after = at_;
        const Piece all = builder_.repeated(least, most, [&] {
            at_ = begin;
            const Piece again = atom(depth);
            UNSLOTH_CHECK(at_ == end, "an atom of another length");
            return again;
        });
        at_ = after;
        return all;
    }

    /// {n}, {n,} and {n,m}; false, with nothing taken, for other texts.
    bool bounds(int64_t& least, int64_t& most) {
        const std::size_t begin = at_;
        const auto number = [&]() -> std::optional<int64_t> {
            int64_t value = -1;
            while (!ended() && pattern_[at_] >= '0' && pattern_[at_] <= '9')
                value = std::min<int64_t>(std::max<int64_t>(value, 0) * 10 + pattern_[at_++] - '0', most_repeats + 1);
            return value < 0 ? std::nullopt : std::optional(value);
        };
        take('{');
        const auto low = number();
        if (low) {
            const bool comma = take(',');
            const auto high = comma ? number() : low;
            if (take('}')) {
                if (high && *high < *low) refuse_regex("a quantifier whose bounds are exchanged");
                if (std::max(*low, high.value_or(0)) > most_repeats)
                    refuse_regex(cat("a quantifier above ", most_repeats));
                least = *low;
                most = high.value_or(-1);
                return true;
            }
        }
        at_ = begin;
        return false;
    }

    Piece atom(int depth) {
        const uint32_t c = next("a character");
        switch (c) {
            case '(':
                return group(depth);
            case '[':
                return of(bracket());
            case '.':
                return of(complement({{'\n', '\n'}, {'\r', '\r'}}));
            case '\\':
                return of(escape(/*in_class=*/false));
            case '^':
            case '$':
                refuse_regex(cat("'", static_cast<char>(c), "' inside it: anchors stand at its ends"));
            case '*':
            case '+':
            case '?':
                refuse_regex(cat("a '", static_cast<char>(c), "' that follows nothing"));
            default:
                return of({{c, c}});
        }
    }

    Piece group(int depth) {
        if (take('?') && !take(':')) {
            if (sees('=') || sees('!') || sees('<')) {
                const bool is_name =
                    sees('<') && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != '=' && pattern_[at_ + 1] != '!';
                if (!is_name) refuse_regex("a lookaround");
                skip_name();
            } else if (take('P')) {
                if (!sees('<')) refuse_regex("a back reference");
                skip_name();
            } else {
                refuse_regex("flags inside a group");
            }
        }
        const Piece inner = alternatives(depth + 1);
        if (!take(')')) refuse_regex("no end: ')' is missing");
        return inner;
    }
    void skip_name() {
        while (next("'>'") != '>') {
        }
    }

    CodePoints bracket() {
        const bool negated = take('^');
        CodePoints points;
        bool first = true;
        while (first || !sees(']')) {
            first = false;
            CodePoints one = class_member();
            const bool range = sees('-') && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
            if (range && one.size() == 1 && one[0].first == one[0].second) {
                ++at_;
                const CodePoints last = class_member();
                if (last.size() != 1 || last[0].first != last[0].second || last[0].first < one[0].first)
                    refuse_regex("a range in a class whose ends do not fit");
                one[0].second = last[0].first;
            }
            points.insert(points.end(), one.begin(), one.end());
            if (ended()) refuse_regex("no end: ']' is missing");
        }
        take(']');
        return negated ? complement(points) : points;
    }
    CodePoints class_member() {
        const uint32_t c = next("']'");
        if (c == '\\') return escape(/*in_class=*/true);
        if (c == '[' && (sees(':') || sees('.') || sees('='))) refuse_regex("a POSIX class");
        return {{c, c}};
    }

    CodePoints escape(bool in_class) {
        const uint32_t c = next("a character after '\\'");
        const auto one = [](uint32_t point) { return CodePoints{{point, point}}; };
        switch (c) {
            case 'd':
                return digits;
            case 'D':
                return complement(digits);
            case 'w':
                return word_characters;
            case 'W':
                return complement(word_characters);
            case 's':
                return spaces;
            case 'S':
                return complement(spaces);
            case 'n':
                return one('\n');
            case 'r':
                return one('\r');
            case 't':
                return one('\t');
            case 'f':
                return one('\f');
            case 'v':
                return one('\v');
            case '0':
                return one(0);
            case 'x':
                return one(hex(2));
            case 'u':
                return one(hex(4));
            case 'b':
                if (in_class) return one('\b');
                refuse_regex("a word boundary, '\\b'");
            default:
                break;
        }
        const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
        if (is_letter) refuse_regex(cat("'\\", static_cast<char>(c), "', which is not supported"));
        return one(c);
    }
    uint32_t hex(int count) {
        uint32_t value = 0;
        for (int i = 0; i < count; ++i) {
            const uint32_t c = next("a hexadecimal digit");
            const bool small = c >= 'a' && c <= 'f', large = c >= 'A' && c <= 'F';
            if (!small && !large && !(c >= '0' && c <= '9')) refuse_regex("an escape without hexadecimal digits");
            value = value * 16 + (small ? c - 'a' + 10 : large ? c - 'A' + 10 : c - '0');
        }
        return value;
    }

    Builder& builder_;
    std::vector<uint32_t> pattern_;
    Spelling spelling_;
    std::size_t at_ = 0;
};

}  // namespace

Piece regex_piece(Builder& builder, std::string_view pattern, Spelling spelling, bool whole) {
    if (pattern.size() > longest_pattern) refuse_regex(cat("more than ", longest_pattern, " bytes"));
    if (first_invalid_utf8(pattern) != pattern.size()) refuse_regex("bytes that are not UTF-8");
    return RegexParser(builder, code_points_of(pattern), spelling).parse(whole);
}

}  // namespace unsloth::grammar
