// Filters that make strings.
#include <algorithm>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

template <std::string (*convert)(std::string_view)>
Value converted(Evaluator&, Arguments& a) {
    const Bound bound("filter", a, {"s"}, 1);
    return convert(to_string(bound[0]));
}

/// Each word begins in upper case; words also begin behind hyphens and opening brackets (unlike str.title).
std::string title(std::string_view s) {
    const auto separates = [](std::string_view c) {
        return c == "-" || c == "(" || c == "{" || c == "[" || c == "<" || text::is_space(text::decode(c)[0]);
    };
    const std::vector<std::string_view> characters = text::characters(s);
    charge(static_cast<int64_t>(characters.size()));  // words of one character each are the dearest
    std::string out;
    for (std::size_t i = 0; i < characters.size();) {
        const bool separator = separates(characters[i]);
        std::size_t end = i + 1;
        while (end < characters.size() && separates(characters[end]) == separator) ++end;
        std::string rest;
        for (std::size_t k = i + 1; k < end; ++k) rest += characters[k];
        out += text::upper(characters[i]) + text::lower(rest);
        i = end;
    }
    return out;
}

Value trim(Evaluator&, Arguments& a) {
    const Bound bound("trim", a, {"value", "chars"}, 1);
    const std::string s = to_string(bound[0]);
    return bound.given(1) ? Value(text::strip(s, bound.string(1), text::Side::both))
                          : Value(text::strip(s, text::Side::both));
}

Value replace(Evaluator&, Arguments& a) {
    const Bound bound("replace", a, {"s", "old", "new", "count"}, 3);
    const int64_t limit = bound.given(3) ? bound.integer_or(3, -1) : -1;
    return text::replace(to_string(bound[0]), to_string(bound[1]), to_string(bound[2]), limit);
}

Value string(Evaluator&, Arguments& a) {
    const Bound bound("string", a, {"object"}, 1);
    return bound[0].is_string() ? bound[0] : Value(to_string(bound[0]));
}

Value escape(Evaluator&, Arguments& a) {
    const Bound bound("escape", a, {"s"}, 1);
    return bound[0].is_markup() ? bound[0] : Value::markup(text::escape_html(to_string(bound[0])));
}

Value force_escape(Evaluator&, Arguments& a) {
    const Bound bound("forceescape", a, {"value"}, 1);
    return Value::markup(text::escape_html(to_string(bound[0])));
}

Value safe(Evaluator&, Arguments& a) {
    const Bound bound("safe", a, {"value"}, 1);
    return Value::markup(to_string(bound[0]));
}

Value format(Evaluator&, Arguments& a) {
    if (a.positional.size() > 1 && !a.named.empty())
        fail("can't handle positional and keyword arguments at the same time");
    const std::string pattern = to_string(a.positional[0]);
    if (a.named.empty())
        return format_percent(pattern, Value::tuple(Items(a.positional.begin() + 1, a.positional.end())));
    auto dict = std::make_shared<Dict>();
    for (const auto& [name, value] : a.named) dict->set(Value(name), value);
    return format_percent(pattern, dict);
}

Value join(Evaluator& evaluator, Arguments& a) {
    const Bound bound("join", a, {"value", "d", "attribute"}, 1);
    Items items = iterate(bound[0]);
    if (bound.given(2)) {
        for (Value& item : items) item = attribute_of(evaluator, item, bound[2]);
    }
    const std::string separator = bound.has(1) ? to_string(bound[1]) : "";
    std::string out;
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += separator;
        out += to_string(items[i]);
        check_string(out.size());
    }
    return out;
}

Value indent(Evaluator&, Arguments& a) {
    const Bound bound("indent", a, {"s", "width", "first", "blank"}, 1);
    if (bound[0].is_undefined()) fail(bound[0].undefined_message());
    if (!bound[0].is_string()) fail(cat("unsupported operand type(s) for +=: '", type_name(bound[0]), "' and 'str'"));
    const Value width = bound.value_or(1, Value(4));
    if (width.is_integral() && width.integer() > 10'000) fail("an indentation of more than 10000 characters");
    const std::string indention =
        width.is_string()
            ? width.string()
            : std::string(static_cast<std::size_t>(std::max<int64_t>(0, to_index(width, "an indentation"))), ' ');
    const std::string source = bound[0].string() + "\n";
    const std::vector<std::string_view> lines = text::split_lines(source, false);
    const bool blank_too = bound.boolean_or(3, false);
    std::string out = bound.boolean_or(2, false) ? indention : "";
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) {
            out += '\n';
            if (blank_too || !lines[i].empty()) out += indention;
        }
        out += lines[i];
        check_string(out.size());
    }
    return out;
}

Value truncate(Evaluator&, Arguments& a) {
    const Bound bound("truncate", a, {"s", "length", "killwords", "end", "leeway"}, 1);
    const std::optional<std::size_t> size = jinja::length(bound[0]);
    if (!size) fail(cat("object of type '", type_name(bound[0]), "' has no len()"));
    const std::string end = bound.has(3) ? bound.string(3) : "...";
    const int64_t length = bound.integer_or(1, 255), leeway = bound.given(4) ? bound.integer_or(4, 5) : 5;
    const auto end_length = static_cast<int64_t>(text::length(end));
    if (length < end_length) fail(cat("expected length >= ", end_length, ", got ", length));
    if (leeway < 0) fail(cat("expected leeway >= 0, got ", leeway));
    if (static_cast<int64_t>(*size) <= length + leeway) return bound[0];
    const std::string& s = bound.string(0);
    std::string_view kept =
        std::string_view(s).substr(0, text::byte_of(s, static_cast<std::size_t>(length - end_length)));
    if (!bound.boolean_or(2, false)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
    return cat(kept, end);
}

Value center(Evaluator&, Arguments& a) {
    const Bound bound("center", a, {"value", "width"}, 1);
    const std::string s = to_string(bound[0]);
    const auto length = static_cast<int64_t>(text::length(s));
    const int64_t width = bound.integer_or(1, 80), missing = std::max<int64_t>(0, width - length);
    if (missing > 1'000'000) fail("a width of more than a million");
    const int64_t left = missing / 2 + (missing & width & 1);
    return cat(std::string(static_cast<std::size_t>(left), ' '), s,
               std::string(static_cast<std::size_t>(missing - left), ' '));
}

Value word_count(Evaluator&, Arguments& a) {
    const Bound bound("wordcount", a, {"s"}, 1);
    std::size_t words = 0;
    bool within = false;
    for (const char32_t c : text::decode(to_string(bound[0]))) {
        words += text::is_word(c) && !within;
        within = text::is_word(c);
    }
    return words;
}

std::string quoted_url(const Value& value, bool for_query) {
    std::string out;
    for (const char c : to_string(value)) {
        const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                           std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !for_query);
        if (plain) {
            out += c;
        } else if (c == ' ' && for_query) {
            out += '+';
        } else {
            constexpr const char* digits = "0123456789ABCDEF";
            out += '%';
            out += digits[static_cast<unsigned char>(c) >> 4];
            out += digits[static_cast<unsigned char>(c) & 15];
        }
    }
    return out;
}

Value url_encode(Evaluator&, Arguments& a) {
    const Bound bound("urlencode", a, {"value"}, 1);
    const Value& value = bound[0];
    if (value.is_string() || !(value.is(Value::Kind::sequence) || value.is(Value::Kind::dict) || value.is_undefined()))
        return quoted_url(value, false);
    std::string out;
    const auto add = [&](const Value& key, const Value& item) {
        out += cat(out.empty() ? "" : "&", quoted_url(key, true), "=", quoted_url(item, true));
    };
    if (value.is(Value::Kind::dict)) {
        for (const auto& [key, item] : value.dict().entries()) add(key, item);
        return out;
    }
    for (const Value& pair : iterate(value)) {
        const Items parts = iterate(pair);
        if (parts.size() != 2) fail("urlencode needs pairs");
        add(parts[0], parts[1]);
    }
    return out;
}

Value to_json_filter(Evaluator&, Arguments& a) {
    const Bound bound("tojson", a, {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
    JsonStyle style;
    style.ensure_ascii = bound.boolean_or(1, false);
    if (bound.given(2)) {
        const bool literal = bound[2].is_string();
        const int64_t width = literal ? 0 : std::max<int64_t>(0, to_index(bound[2], "an indentation"));
        if (width > 1000) fail("an indentation of more than 1000 characters");
        style.indent = literal ? bound[2].string() : std::string(static_cast<std::size_t>(width), ' ');
        style.item_separator = ",";
    }
    if (bound.given(3)) {
        const Items separators = iterate(bound[3]);
        if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
            fail("tojson: separators must be two strings");
        style.item_separator = separators[0].string();
        style.key_separator = separators[1].string();
    }
    style.sort_keys = bound.boolean_or(4, false);
    return to_json(bound[0], style);
}

}  // namespace

const FilterEntry text_filters[] = {
    {"upper", converted<text::upper>},
    {"lower", converted<text::lower>},
    {"capitalize", converted<text::capitalize>},
    {"title", converted<title>},
    {"trim", trim},
    {"replace", replace},
    {"string", string},
    {"escape", escape},
    {"e", escape},
    {"forceescape", force_escape},
    {"safe", safe},
    {"format", format},
    {"join", join},
    {"indent", indent},
    {"truncate", truncate},
    {"center", center},
    {"wordcount", word_count},
    {"urlencode", url_encode},
    {"tojson", to_json_filter},
    {"", nullptr},
};

}  // namespace unsloth::tokenizer::jinja
