#include "tokenizer/jinja/print.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

std::string repr_items(const Items& items, const char* open, const char* close) {
    std::string out = open;
    charge(static_cast<int64_t>(items.size()));
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += ", ";
        out += repr(items[i]);
        check_string(out.size());
    }
    return out += close;
}

std::string repr_sequence(const Sequence& s) {
    const DepthGuard guard;
    switch (s.kind) {
        case Sequence::Kind::list:
            return repr_items(s.items, "[", "]");
        case Sequence::Kind::tuple:
            return repr_items(s.items, "(", s.items.size() == 1 ? ",)" : ")");
        case Sequence::Kind::range:
            return s.step == 1 ? cat("range(", s.start, ", ", s.stop, ")")
                               : cat("range(", s.start, ", ", s.stop, ", ", s.step, ")");
        case Sequence::Kind::view:
            return cat(s.name, repr_items(s.items, "([", "])"));
        case Sequence::Kind::generator:
            return cat("<", s.name, " object>");
    }
    UNSLOTH_CHECK(false, "kind of sequence");
}

std::string repr_dict(const Dict& dict) {
    const DepthGuard guard;
    std::string out = "{";
    charge(2 * static_cast<int64_t>(dict.size()));
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
        switch (value.kind()) {
            case Value::Kind::none:
                out_ += "null";
                return;
            case Value::Kind::boolean:
                out_ += value.boolean() ? "true" : "false";
                return;
            case Value::Kind::integer:
                out_ += to_decimal(value.integer());
                return;
            case Value::Kind::floating:
                out_ += number(value.floating());
                return;
            case Value::Kind::string:
                string(value.string());
                return;
            case Value::Kind::sequence:
                if (value.is_sequence(Sequence::Kind::list) || value.is_sequence(Sequence::Kind::tuple))
                    return array(value.sequence().items);
                break;
            case Value::Kind::dict:
                return object(value.dict());
            default:
                break;
        }
        fail(cat("Object of type ", type_name(value), " is not JSON serializable"));
    }
    std::string take() { return std::move(out_); }

  private:
    static std::string number(double value) {
        if (std::isnan(value)) return "NaN";
        if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
        return repr(value);
    }

    void string(std::string_view s) {
        charge_characters(s.size());
        out_ += '"';
        for (std::size_t at = 0; at < s.size();) {
            const unicode::Decoded d = unicode::decode(s, at);
            character(d.code_point, s.substr(at, d.size));
            at += d.size;
        }
        out_ += '"';
    }

    void character(char32_t c, std::string_view bytes) {
        static constexpr std::string_view letters = "\"\\\n\r\t\b\f", escapes = "\"\\nrtbf";
        const std::size_t at = c < 0x80 ? letters.find(static_cast<char>(c)) : letters.npos;
        if (at != letters.npos) {
            out_ += '\\';
            out_ += escapes[at];
        } else if (c < 0x20) {
            escape(c);
        } else if (style_.ensure_ascii && c >= 0x10000) {
            escape(0xD800 + ((c - 0x10000) >> 10));
            escape(0xDC00 + ((c - 0x10000) & 0x3FF));
        } else if (style_.ensure_ascii && c >= 0x80) {
            escape(c);
        } else {
            out_ += bytes;
        }
    }

    void escape(char32_t unit) {
        char buffer[16];
        std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(unit));
        out_ += buffer;
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

    void array(const Items& items) {
        if (items.empty()) {
            out_ += "[]";
            return;
        }
        const DepthGuard guard;
        out_ += '[';
        ++level_;
        for (std::size_t i = 0; i < items.size(); ++i) {
            if (i > 0) out_ += style_.item_separator;
            line();
            write(items[i]);
        }
        --level_;
        line();
        out_ += ']';
    }

    static std::string key(const Value& value) {
        switch (value.kind()) {
            case Value::Kind::string:
                return value.string();
            case Value::Kind::none:
                return "null";
            case Value::Kind::boolean:
                return value.boolean() ? "true" : "false";
            case Value::Kind::integer:
                return to_decimal(value.integer());
            case Value::Kind::floating:
                return number(value.floating());
            default:
                fail(cat("keys must be str, int, float, bool or None, not ", type_name(value)));
        }
    }

    void object(const Dict& dict) {
        if (dict.size() == 0) {
            out_ += "{}";
            return;
        }
        const DepthGuard guard;
        std::vector<const std::pair<Value, Value>*> entries;
        for (const auto& entry : dict.entries()) entries.push_back(&entry);
        if (style_.sort_keys) {
            std::stable_sort(entries.begin(), entries.end(),
                             [](const auto* a, const auto* b) { return less(a->first, b->first, false, "<"); });
        }
        out_ += '{';
        ++level_;
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (i > 0) out_ += style_.item_separator;
            line();
            string(key(entries[i]->first));
            out_ += style_.key_separator;
            write(entries[i]->second);
        }
        --level_;
        line();
        out_ += '}';
    }

    const JsonStyle& style_;
    std::string out_;
    int level_ = 0;
};

}  // namespace

/// The shortest digits that read back as the same number; with an exponent below 1e-4 and from 1e16.
std::string repr(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    std::array<char, 64> buffer;
    const auto end =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
    std::string digits(buffer.data(), end);
    const std::size_t e = digits.find('e');
    const int exponent = std::atoi(digits.c_str() + e + 1);
    if (exponent < -4 || exponent >= 16) return digits;
    digits.resize(e);
    const bool negative = digits[0] == '-';
    if (negative) digits.erase(0, 1);
    std::erase(digits, '.');
    const int count = static_cast<int>(digits.size());
    std::string out = negative ? "-" : "";
    if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
    if (count <= exponent + 1) {
        return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
    }
    return out + digits.substr(0, static_cast<std::size_t>(exponent + 1)) + "." +
           digits.substr(static_cast<std::size_t>(exponent + 1));
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
            return repr_sequence(value.sequence());
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
