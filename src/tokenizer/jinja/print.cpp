// Values as text: Python's str and repr, and JSON, which values also come from.
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

/// The shortest digits that read back as the same number; with an exponent below 1e-4 and from 1e16. JSON, and so a
/// template, has no other numbers than finite ones.
std::string repr(double value) {
    const double magnitude = std::fabs(value);
    const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    std::array<char, 64> buffer;
    const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    const std::string digits(buffer.data(), end);
    return plain && digits.find('.') == digits.npos ? digits + ".0" : digits;
}

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

/// Of what is no string and holds nothing.
std::string scalar(const Value& value, bool json) {
    if (value.is_none()) return json ? "null" : "None";
    if (value.is(Value::Kind::boolean))
        return json ? (value.boolean() ? "true" : "false") : value.boolean() ? "True" : "False";
    if (value.is(Value::Kind::integer)) return to_decimal(value.integer());
    if (value.is(Value::Kind::floating)) return repr(value.floating());
    if (json) fail(cat("Object of type ", type_name(value), " is not JSON serializable"));
    if (value.is_undefined()) return "Undefined";
    if (value.is(Value::Kind::object)) return cat("<", value.object()->type_name(), ">");
    fail(cat("a ", type_name(value), " as text is not supported in chat templates"));
}

/// json.dumps, or Python's repr.
class Writer {
  public:
    /// Of repr without `style`.
    explicit Writer(const JsonStyle* style) : json_(style != nullptr), style_(style ? *style : JsonStyle()) {}

    std::string take(const Value& value) {
        write(value);
        return std::move(out_);
    }

  private:
    void write(const Value& value) {
        const bool is_tuple = value.is_sequence(Sequence::Kind::tuple);
        if (value.is_string()) {
            string(value);
        } else if (is_tuple || value.is_sequence(Sequence::Kind::list)) {
            elements(value.items(), is_tuple && !json_ ? "()" : "[]", [&](const Value& item) { write(item); });
            if (is_tuple && !json_ && value.items().size() == 1) out_.insert(out_.size() - 1, ",");
        } else if (value.is(Value::Kind::dict)) {
            elements(value.dict().entries(), "{}", [&](const auto& entry) {
                key(entry.first);
                out_ += style_.key_separator;
                write(entry.second);
            });
        } else {
            out_ += scalar(value, json_);
        }
    }

    void key(const Value& value) {
        if (!json_ || value.is_string()) return write(value);
        if (!value.is_none() && !value.is_number())
            fail(cat("keys must be str, int, float, bool or None, not ", type_name(value)));
        out_ += cat('"', scalar(value, true), '"');
    }

    void string(const Value& value) {
        const std::string& s = value.string();
        if (!json_) {
            out_ += value.is_markup() ? cat("Markup(", text::repr(s), ")") : text::repr(s);
            return;
        }
        charge_characters(s.size());
        out_ += '"';
        bool first = true;
        for (const std::string_view part : text::split(s, "\x7f", -1)) {  // Python, unlike nlohmann, never escapes it
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

    const bool json_;
    const JsonStyle style_;
    std::string out_;
    int level_ = 0;
};

}  // namespace

std::string repr(const Value& value) {
    return Writer(nullptr).take(value);
}

std::string to_string(const Value& value) {
    if (value.is_string()) return value.string();
    return value.is_undefined() ? std::string() : repr(value);
}

std::string to_json(const Value& value, const JsonStyle& style) {
    return Writer(&style).take(value);
}

Value from_json(const nlohmann::ordered_json& json) {
    const Level level = value_level();
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_unsigned()) return Integer{json.get<uint64_t>()};
    if (json.is_number_integer()) return Integer{json.get<int64_t>()};
    if (json.is_number()) return json.get<double>();
    if (json.is_string()) return json.get_ref<const std::string&>();
    if (json.is_array()) {
        Items items;
        for (const auto& item : json) items.push_back(from_json(item));
        return Value::list(std::move(items));
    }
    if (!json.is_object()) return {};
    auto dict = std::make_shared<Dict>();
    for (const auto& [key, value] : json.items()) dict->set(Value(key), from_json(value));
    return dict;
}

}  // namespace unsloth::tokenizer::jinja
