// What depends on the properties of characters: case, predicates, repr.
#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "tokenizer/jinja/character_tables.h"
#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer::jinja::text {
namespace {

bool contains(const std::vector<CharacterRun>& runs, char32_t c) {
    const auto run = std::partition_point(runs.begin(), runs.end(), [c](const CharacterRun& r) { return r.last < c; });
    return run != runs.end() && run->first <= c && (c - run->first) % run->step == 0;
}

class CaseMap {
  public:
    CaseMap(const std::vector<CaseRun>& runs, const std::vector<CaseExpansion>& expansions) {
        for (const CaseRun& run : runs) {
            for (char32_t c = run.first; c <= run.last; c += run.step)
                to_[c] = std::u32string(1, static_cast<char32_t>(static_cast<int64_t>(c) + run.offset));
        }
        for (const CaseExpansion& row : expansions) {
            for (const char32_t part : row.to) {
                if (part) to_[row.code_point] += part;
            }
        }
    }
    void append(std::u32string& out, char32_t c) const {
        const auto found = to_.find(c);
        if (found == to_.end()) {
            out += c;
        } else {
            out += found->second;
        }
    }

  private:
    std::unordered_map<char32_t, std::u32string> to_;
};

const CaseMap& lower_map() {
    static const CaseMap map(lower_runs(), lower_expansions());
    return map;
}
const CaseMap& upper_map() {
    static const CaseMap map(upper_runs(), upper_expansions());
    return map;
}
const CaseMap& title_map() {
    static const CaseMap map(title_runs(), title_expansions());
    return map;
}
const CaseMap& fold_map() {
    static const CaseMap map(fold_runs(), fold_expansions());
    return map;
}

bool is_ascii(std::string_view s) {
    return std::none_of(s.begin(), s.end(), [](char c) { return c & 0x80; });
}

/// Most text is ASCII, where case is a matter of one bit.
std::string with_case(std::string_view s, char first, char last) {
    charge_bytes(s.size());
    std::string out(s);
    for (char& c : out) c = c >= first && c <= last ? static_cast<char>(c ^ 0x20) : c;
    return out;
}

constexpr char32_t capital_sigma = 0x3A3, sigma = 0x3C3, final_sigma = 0x3C2;

/// Unicode's Final_Sigma: a cased character in front, none behind, ignorable ones not counted.
bool ends_word(const std::u32string& s, std::size_t at) {
    std::size_t before = at;
    while (before > 0 && contains(case_ignorable_runs(), s[before - 1])) --before;
    if (before == 0 || !contains(cased_runs(), s[before - 1])) return false;
    std::size_t behind = at + 1;
    while (behind < s.size() && contains(case_ignorable_runs(), s[behind])) ++behind;
    return behind == s.size() || !contains(cased_runs(), s[behind]);
}

void append_lower(std::u32string& out, const std::u32string& s, std::size_t at) {
    if (s[at] == capital_sigma) {
        out += ends_word(s, at) ? final_sigma : sigma;
    } else {
        lower_map().append(out, s[at]);
    }
}

std::string mapped(std::string_view s, const CaseMap& map) {
    std::u32string out;
    for (const char32_t c : decode(s)) map.append(out, c);
    return encode(out);
}

bool is_upper(char32_t c) {
    return contains(uppercase_runs(), c);
}
bool is_lower(char32_t c) {
    return contains(lowercase_runs(), c);
}
bool is_title(char32_t c) {
    return contains(titlecase_runs(), c);
}
bool is_alphabetic(char32_t c) {
    return contains(alphabetic_runs(), c);
}
bool is_numeric(char32_t c) {
    return contains(numeric_runs(), c);
}
bool is_alphanumeric(char32_t c) {
    return is_alphabetic(c) || is_numeric(c) || contains(digit_runs(), c) || is_decimal(c);
}

bool title_cased(const std::u32string& s) {
    bool cased = false, within = false;
    for (const char32_t c : s) {
        if (is_upper(c) || is_title(c)) {
            if (within) return false;
            within = cased = true;
        } else if (is_lower(c)) {
            if (!within) return false;
            cased = true;
        } else {
            within = false;
        }
    }
    return cased;
}

bool identifier(const std::u32string& s) {
    return !s.empty() && (s[0] == '_' || is_alphabetic(s[0])) && std::all_of(s.begin(), s.end(), is_word);
}

template <class Wanted, class Unwanted>
bool one_case(const std::u32string& s, Wanted wanted, Unwanted unwanted) {
    return std::none_of(s.begin(), s.end(), unwanted) && std::any_of(s.begin(), s.end(), wanted);
}

}  // namespace

bool is_decimal(char32_t c) {
    return c < 0x80 ? c >= '0' && c <= '9' : contains(decimal_runs(), c);
}

bool is_word(char32_t c) {
    if (c < 0x80) return c == '_' || (c >= '0' && c <= '9') || (c | 0x20) - 'a' < 26;
    return is_alphanumeric(c);
}

std::string lower(std::string_view s) {
    if (is_ascii(s)) return with_case(s, 'A', 'Z');
    const std::u32string points = decode(s);
    std::u32string out;
    for (std::size_t i = 0; i < points.size(); ++i) append_lower(out, points, i);
    return encode(out);
}

std::string upper(std::string_view s) {
    if (is_ascii(s)) return with_case(s, 'a', 'z');
    return mapped(s, upper_map());
}

std::string casefold(std::string_view s) {
    return mapped(s, fold_map());
}

std::string swapcase(std::string_view s) {
    const std::u32string points = decode(s);
    std::u32string out;
    for (std::size_t i = 0; i < points.size(); ++i) {
        if (is_upper(points[i])) {
            append_lower(out, points, i);
        } else if (is_lower(points[i])) {
            upper_map().append(out, points[i]);
        } else {
            out += points[i];
        }
    }
    return encode(out);
}

std::string capitalize(std::string_view s) {
    const std::u32string points = decode(s);
    std::u32string out;
    for (std::size_t i = 0; i < points.size(); ++i) {
        if (i == 0) {
            title_map().append(out, points[0]);
        } else {
            append_lower(out, points, i);
        }
    }
    return encode(out);
}

std::string title(std::string_view s) {
    const std::u32string points = decode(s);
    std::u32string out;
    bool within = false;
    for (std::size_t i = 0; i < points.size(); ++i) {
        if (within) {
            append_lower(out, points, i);
        } else {
            title_map().append(out, points[i]);
        }
        within = contains(cased_runs(), points[i]);
    }
    return encode(out);
}

bool has_property(std::string_view s, std::string_view property) {
    const std::u32string points = decode(s);
    const auto all = [&](auto test) { return !points.empty() && std::all_of(points.begin(), points.end(), test); };
    if (property == "ascii") return std::all_of(points.begin(), points.end(), [](char32_t c) { return c < 0x80; });
    if (property == "alnum") return all(is_alphanumeric);
    if (property == "alpha") return all(is_alphabetic);
    if (property == "decimal") return all(is_decimal);
    if (property == "digit") return all([](char32_t c) { return contains(digit_runs(), c); });
    if (property == "numeric") return all(is_numeric);
    if (property == "space") return all(is_space);
    if (property == "identifier") return identifier(points);
    if (property == "title") return title_cased(points);
    if (property == "printable") {
        return std::all_of(points.begin(), points.end(), [](char32_t c) { return contains(printable_runs(), c); });
    }
    if (property == "lower") return one_case(points, is_lower, [](char32_t c) { return is_upper(c) || is_title(c); });
    return one_case(points, is_upper, [](char32_t c) { return is_lower(c) || is_title(c); });
}

std::string repr(std::string_view s) {
    const bool double_quotes = s.find('\'') != s.npos && s.find('"') == s.npos;
    const char32_t quote = double_quotes ? '"' : '\'';
    std::string out(1, static_cast<char>(quote));
    const auto escape = [&](const char* format, char32_t c) {
        char buffer[16];
        std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
        out += buffer;
    };
    for (const char32_t c : decode(s)) {
        if (c == quote || c == '\\') {
            out += '\\';
            out += static_cast<char>(c);
        } else if (c == '\n') {
            out += "\\n";
        } else if (c == '\r') {
            out += "\\r";
        } else if (c == '\t') {
            out += "\\t";
        } else if (contains(printable_runs(), c)) {
            unicode::append(out, c);
        } else if (c < 0x100) {
            escape("\\x%02x", c);
        } else if (c < 0x10000) {
            escape("\\u%04x", c);
        } else {
            escape("\\U%08x", c);
        }
    }
    out += static_cast<char>(quote);
    return out;
}

}  // namespace unsloth::tokenizer::jinja::text
