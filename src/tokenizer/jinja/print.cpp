// Values as text: Python's str and repr, and JSON.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/value.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

/// The shortest digits that read back as the same number; with an exponent below 1e-4 and from 1e16.
std::string repr(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    const double magnitude = std::fabs(value);
    const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    std::array<char, 64> buffer;
    const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    const std::string digits(buffer.data(), end);
    return plain && digits.find('.') == digits.npos ? digits + ".0" : digits;
}

std::string repr_items(const Items& items, const char* open, const char* close) {
    std::string out = open;
    charge(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += ", ";
        out += repr(items[i]);
        check_string(out.size());
    }
    return out += close;
}

std::string repr_sequence(const Value& value) {
    const Level level = value_level();
    const Items& items = value.items();
    if (value.is_sequence(Sequence::Kind::list)) return repr_items(items, "[", "]");
    if (value.is_sequence(Sequence::Kind::tuple)) return repr_items(items, "(", items.size() == 1 ? ",)" : ")");
    fail(cat("a ", type_name(value), " as text is not supported in chat templates"));
}

std::string repr_dict(const Dict& dict) {
    const Level level = value_level();
    std::string out = "{";
    charge(2 * dict.size());
    for (const auto& [key, value] : dict.entries()) {
        if (out.size() > 1) out += ", ";
        out += repr(key);
        out += ": ";
        out += repr(value);
        check_string(out.size());
    }
    return out += "}";
}

class JsonWriter {
  public:
    explicit JsonWriter(const JsonStyle& style) : style_(style) {}

    void write(const Value& value) {
        if (const std::optional<std::string> plain = scalar(value)) {
            out_ += *plain;
        } else if (value.is_string()) {
            string(value.string());
        } else if (value.is_sequence(Sequence::Kind::list) || value.is_sequence(Sequence::Kind::tuple)) {
            elements(value.items(), "[]", [&](const Value& item) { write(item); });
        } else if (value.is(Value::Kind::dict)) {
            object(value.dict());
        } else {
            fail(cat("Object of type ", type_name(value), " is not JSON serializable"));
        }
    }
    std::string take() { return std::move(out_); }

  private:
    /// What is no string and holds nothing.
    static std::optional<std::string> scalar(const Value& value) {
        if (value.is_none()) return "null";
        if (value.is(Value::Kind::boolean)) return value.boolean() ? "true" : "false";
        if (value.is(Value::Kind::integer)) return to_decimal(value.integer());
        if (!value.is(Value::Kind::floating)) return std::nullopt;
        const double number = value.floating();
        if (std::isnan(number)) return "NaN";
        return std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity") : repr(number);
    }

    void string(std::string_view s) {
        charge_characters(s.size());
        out_ += '"';
        bool first = true;
        for (const std::string_view part :
             text::split(s, "\x7f", -1)) {  // which Python, unlike nlohmann, never escapes
            if (!std::exchange(first, false)) out_ += '\x7f';
            const std::string quoted = nlohmann::json(part).dump(-1, ' ', style_.ensure_ascii);
            out_.append(quoted, 1, quoted.size() - 2);
        }
        out_ += '"';
    }

    /// Before each element.
    void line() {
        charge(1);
        check_string(out_.size());
        if (!style_.indent) return;
        out_ += '\n';
        for (int i = 0; i < level_; ++i) {
            out_ += *style_.indent;
            check_string(out_.size());
        }
    }

    template <class All, class Write>
    void elements(const All& all, const char* brackets, Write write_one) {
        if (all.empty()) {
            out_ += brackets;
            return;
        }
        const Level level = value_level();
        out_ += brackets[0];
        ++level_;
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (i > 0) out_ += style_.item_separator;
            line();
            write_one(all[i]);
        }
        --level_;
        line();
        out_ += brackets[1];
    }

    void object(const Dict& dict) {
        elements(dict.entries(), "{}", [&](const auto& entry) {
            const std::optional<std::string> plain = scalar(entry.first);
            if (!plain && !entry.first.is_string())
                fail(cat("keys must be str, int, float, bool or None, not ", type_name(entry.first)));
            string(plain ? *plain : entry.first.string());
            out_ += style_.key_separator;
            write(entry.second);
        });
    }

    const JsonStyle& style_;
    std::string out_;
    int level_ = 0;
};

}  // namespace

std::string to_decimal(Integer value) {
    std::string digits;
    const bool negative = value < 0;
    do {
        const int digit = static_cast<int>(value % 10);
        digits += static_cast<char>('0' + (digit < 0 ? -digit : digit));
        value /= 10;
    } while (value != 0);
    if (negative) digits += '-';
    std::reverse(digits.begin(), digits.end());
    return digits;
}

std::string repr(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::none:
            return "None";
        case Value::Kind::undefined:
            return "Undefined";
        case Value::Kind::boolean:
            return value.boolean() ? "True" : "False";
        case Value::Kind::integer:
            return to_decimal(value.integer());
        case Value::Kind::floating:
            return repr(value.floating());
        case Value::Kind::string:
            return value.is_markup() ? cat("Markup(", text::repr(value.string()), ")") : text::repr(value.string());
        case Value::Kind::sequence:
            return repr_sequence(value);
        case Value::Kind::dict:
            return repr_dict(value.dict());
        case Value::Kind::object:
            return cat("<", value.object()->type_name(), ">");
    }
    UNSLOTH_CHECK(false, "kind of value");
}

std::string to_string(const Value& value) {
    if (value.is_string()) return value.string();
    return value.is_undefined() ? std::string() : repr(value);
}

std::string to_json(const Value& value, const JsonStyle& style) {
    JsonWriter writer(style);
    writer.write(value);
    return writer.take();
}

}  // namespace unsloth::tokenizer::jinja
