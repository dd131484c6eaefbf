// Methods of Python's str.
#include <algorithm>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

using text::Side;

constexpr int64_t widest = 1'000'000;

Value list_of(const std::vector<std::string_view>& parts) {
    Items items;
    for (const std::string_view part : parts) items.emplace_back(part);
    return Value::list(std::move(items));
}

template <std::string (*convert)(std::string_view)>
Value converted(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("method", a, {}, 0);
    return convert(self.string());
}

/// isalpha() and the like; the name is that of text::has_property.
template <char const* property>
Value predicate(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("method", a, {}, 0);
    return text::has_property(self.string(), property);
}
constexpr char alnum[] = "alnum", alpha[] = "alpha", ascii[] = "ascii", decimal[] = "decimal", digit[] = "digit",
               identifier[] = "identifier", lower_case[] = "lower", numeric[] = "numeric", printable[] = "printable",
               space[] = "space", title_case[] = "title", upper_case[] = "upper";

template <Side side>
Value strip(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("strip", a, {"chars"}, 0, true);
    return bound.given(0) ? Value(text::strip(self.string(), bound.string(0), side))
                          : Value(text::strip(self.string(), side));
}

template <bool reverse>
Value split(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("split", a, {"sep", "maxsplit"}, 0);
    const int64_t limit = bound.integer_or(1, -1);
    if (!bound.given(0)) return list_of(text::split_white_space(self.string(), limit, reverse));
    if (bound.string(0).empty()) fail("empty separator");
    return list_of(text::split(self.string(), bound.string(0), limit, reverse));
}

Value split_lines(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("splitlines", a, {"keepends"}, 0);
    return list_of(text::split_lines(self.string(), bound.boolean_or(0, false)));
}

/// The part of `s` that [start, end) of optional arguments 1 and 2 select, and where it begins in code
/// points. nullopt where the range lies beyond the string, in which even an empty string is not found.
std::optional<std::pair<std::string_view, int64_t>> searched(const std::string& s, const Bound& bound) {
    if (!bound.given(1) && !bound.given(2)) return std::pair(std::string_view(s), int64_t{0});
    const auto size = static_cast<int64_t>(text::length(s));
    const auto place = [&](std::size_t i, int64_t otherwise) {
        if (!bound.given(i)) return otherwise;
        const int64_t at = bound.integer_or(i, 0);
        return at < 0 ? std::max<int64_t>(at + size, 0) : at;
    };
    const int64_t begin = place(1, 0), end = std::min(place(2, size), size);
    if (begin > end) return std::nullopt;
    const std::size_t from = text::byte_of(s, static_cast<std::size_t>(begin));
    const std::size_t to = text::byte_of(s, static_cast<std::size_t>(end));
    return std::pair(std::string_view(s).substr(from, to - from), begin);
}

template <bool at_start>
Value starts_or_ends(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound(at_start ? "startswith" : "endswith", a, {"prefix", "start", "end"}, 1, true);
    const auto part = searched(self.string(), bound);
    const auto matches = [&](const Value& candidate) {
        if (!candidate.is_string()) {
            fail(cat(at_start ? "startswith" : "endswith", " first arg must be str or a tuple of str, not ",
                     type_name(candidate)));
        }
        const std::string& c = candidate.string();
        return part && (at_start ? part->first.starts_with(c) : part->first.ends_with(c));
    };
    if (!bound[0].is_sequence(Sequence::Kind::tuple)) return matches(bound[0]);
    const Items& candidates = bound[0].sequence().items;
    return std::any_of(candidates.begin(), candidates.end(), matches);
}

template <bool reverse, bool must>
Value find(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("find", a, {"sub", "start", "end"}, 1, true);
    const std::string& wanted = bound.string(0);
    if (const auto part = searched(self.string(), bound)) {
        const std::size_t at = reverse ? text::find_last(part->first, wanted) : text::find(part->first, wanted);
        if (at != std::string_view::npos)
            return Integer{part->second} + Integer(text::length(part->first.substr(0, at)));
    }
    if (must) fail("substring not found");
    return -1;
}

Value count(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("count", a, {"sub", "start", "end"}, 1, true);
    const std::string& wanted = bound.string(0);
    const auto part = searched(self.string(), bound);
    return part ? Value(text::count(part->first, wanted)) : Value(0);
}

Value replace(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("replace", a, {"old", "new", "count"}, 2, true);
    const std::string &from = bound.string(0), &to = bound.string(1);
    const std::size_t found = text::count(self.string(), from);
    if (to.size() > 1 && found > longest_string / to.size()) check_string(longest_string + 1);
    return text::replace(self.string(), from, to, bound.integer_or(2, -1));
}

Value join(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("join", a, {"iterable"}, 1, true);
    std::string out;
    std::size_t i = 0;
    for (const Value& item : iterate(bound[0])) {
        if (!item.is_string()) fail(cat("sequence item ", i, ": expected str instance, ", type_name(item), " found"));
        if (i++ > 0) out += self.string();
        out += item.string();
        check_string(out.size());
    }
    return out;
}

Value format(Evaluator& evaluator, const Value& self, Arguments& a) {
    return format_braces(evaluator, self.string(), a);
}

Value format_map(Evaluator& evaluator, const Value& self, Arguments& a) {
    const Bound bound("format_map", a, {"mapping"}, 1, true);
    if (!bound[0].is(Value::Kind::dict)) fail(cat("'", type_name(bound[0]), "' object is not subscriptable"));
    Arguments named;
    for (const auto& [key, value] : bound[0].dict().entries()) {
        if (key.is_string()) named.named.emplace_back(key.string(), value);
    }
    return format_braces(evaluator, self.string(), named);
}

template <bool reverse>
Value partition(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("partition", a, {"sep"}, 1, true);
    const std::string &s = self.string(), &separator = bound.string(0);
    if (separator.empty()) fail("empty separator");
    const std::size_t at = reverse ? text::find_last(s, separator) : text::find(s, separator);
    if (at == std::string::npos) return reverse ? Value::tuple({"", "", s}) : Value::tuple({s, "", ""});
    return Value::tuple({s.substr(0, at), separator, s.substr(at + separator.size())});
}

template <bool prefix>
Value remove_affix(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound(prefix ? "removeprefix" : "removesuffix", a, {"affix"}, 1, true);
    const std::string_view s = self.string(), affix = bound.string(0);
    if (prefix) return s.starts_with(affix) ? s.substr(affix.size()) : s;
    return s.ends_with(affix) ? s.substr(0, s.size() - affix.size()) : s;
}

int64_t width_of(const Bound& bound) {
    const int64_t width = bound.integer_or(0, 0);
    if (width > widest) fail("a width of more than a million");
    return width;
}

template <char align>
Value justify(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("justify", a, {"width", "fillchar"}, 1, true);
    const std::string fill = bound.has(1) ? bound.string(1) : " ";
    if (text::length(fill) != 1) fail("The fill character must be exactly one character long");
    const auto size = static_cast<int64_t>(text::length(self.string()));
    const int64_t width = width_of(bound), missing = std::max<int64_t>(0, width - size);
    const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
    charge_characters(static_cast<std::size_t>(missing));
    std::string out;
    for (int64_t i = 0; i < left; ++i) out += fill;
    out += self.string();
    for (int64_t i = left; i < missing; ++i) out += fill;
    return out;
}

Value zero_fill(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("zfill", a, {"width"}, 1, true);
    const std::string& s = self.string();
    const int64_t missing = width_of(bound) - static_cast<int64_t>(text::length(s));
    if (missing <= 0) return s;
    const std::size_t sign = !s.empty() && (s[0] == '+' || s[0] == '-') ? 1 : 0;
    return s.substr(0, sign) + std::string(static_cast<std::size_t>(missing), '0') + s.substr(sign);
}

Value expand_tabs(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("expandtabs", a, {"tabsize"}, 0);
    const int64_t size = bound.integer_or(0, 8);
    if (size > 1000) fail("a tab size of more than 1000");
    std::string out;
    int64_t column = 0;
    for (const std::string_view c : text::characters(self.string())) {
        if (c == "\t") {
            const int64_t spaces = size > 0 ? size - column % size : 0;
            out.append(static_cast<std::size_t>(spaces), ' ');
            column += spaces;
        } else {
            out += c;
            column = c == "\n" || c == "\r" ? 0 : column + 1;
        }
        check_string(out.size());
    }
    return out;
}

}  // namespace

const MethodEntry string_methods[] = {
    {"strip", strip<Side::both>},
    {"lstrip", strip<Side::left>},
    {"rstrip", strip<Side::right>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", split_lines},
    {"startswith", starts_or_ends<true>},
    {"endswith", starts_or_ends<false>},
    {"replace", replace},
    {"upper", converted<text::upper>},
    {"lower", converted<text::lower>},
    {"title", converted<text::title>},
    {"capitalize", converted<text::capitalize>},
    {"casefold", converted<text::casefold>},
    {"swapcase", converted<text::swapcase>},
    {"find", find<false, false>},
    {"rfind", find<true, false>},
    {"index", find<false, true>},
    {"rindex", find<true, true>},
    {"count", count},
    {"join", join},
    {"format", format},
    {"format_map", format_map},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"center", justify<'^'>},
    {"ljust", justify<'<'>},
    {"rjust", justify<'>'>},
    {"zfill", zero_fill},
    {"expandtabs", expand_tabs},
    {"isalnum", predicate<alnum>},
    {"isalpha", predicate<alpha>},
    {"isascii", predicate<ascii>},
    {"isdecimal", predicate<decimal>},
    {"isdigit", predicate<digit>},
    {"isidentifier", predicate<identifier>},
    {"islower", predicate<lower_case>},
    {"isnumeric", predicate<numeric>},
    {"isprintable", predicate<printable>},
    {"isspace", predicate<space>},
    {"istitle", predicate<title_case>},
    {"isupper", predicate<upper_case>},
    {"", nullptr},
};

}  // namespace unsloth::tokenizer::jinja
