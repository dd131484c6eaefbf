// "{}".format(values).
#include <algorithm>

#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/format_field.h"
#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

/// [[fill]align][sign][z][#][0][width][, or _][.precision][type]
Field read_specification(std::string_view s) {
    Field field;
    std::size_t at = 0;
    const auto is_align = [&](std::size_t i) {
        return i < s.size() && std::string_view("<>=^").find(s[i]) != std::string_view::npos;
    };
    const std::size_t first = s.empty() ? 0 : unicode::decode(s, 0).size;
    if (is_align(first) && first > 0) {
        field.fill = s.substr(0, first);
        field.align = s[first];
        at = first + 1;
    } else if (is_align(0)) {
        field.align = s[0];
        at = 1;
    }
    if (at < s.size() && std::string_view("+- ").find(s[at]) != std::string_view::npos) field.sign = s[at++];
    if (at < s.size() && s[at] == '#') field.alternate = true, ++at;
    if (at < s.size() && s[at] == '0') {
        if (!field.align) field.fill = "0", field.align = '=';
        ++at;
    }
    field.width = std::max<int64_t>(read_number(s, at), 0);
    if (at < s.size() && (s[at] == ',' || s[at] == '_')) field.separator = s[at++];
    if (at < s.size() && s[at] == '.') {
        ++at;
        field.precision = read_number(s, at);
        if (field.precision < 0) fail("Format specifier missing precision");
    }
    if (at < s.size()) field.type = s[at++];
    if (at < s.size()) fail(cat("Invalid format specifier '", s, "'"));
    return field;
}

std::string format_value(const Value& value, std::string_view specification) {
    if (specification.empty()) return to_string(value);
    Field field = read_specification(specification);
    const auto refuse = [&] {
        fail(cat("Unknown format code '", field.type, "' for object of type '", type_name(value), "'"));
    };
    if (value.is_string()) {
        if (field.type != 's' && field.type) refuse();
        if (field.align == '=') {
            if (field.fill != "0") fail("'=' alignment not allowed in string format specifier");
            field.align = '<';
        }
        return write_string(field, value.string());
    }
    if (!value.is_number()) fail(cat("unsupported format string passed to ", type_name(value), ".__format__"));
    const bool integral = field.type && std::string_view("bcdoxXn").find(field.type) != std::string_view::npos;
    if (field.type && !integral && std::string_view("eEfFgG%").find(field.type) == std::string_view::npos) refuse();
    if (value.is(Value::Kind::floating) ? !integral : field.type && !integral) {
        return write_float(field, value.floating());
    }
    if (!value.is_integral()) refuse();
    if (field.precision >= 0) fail("Precision not allowed in integer format specifier");
    return write_integer(field, value.integer());
}

class BraceFormatter {
  public:
    BraceFormatter(Evaluator& evaluator, const Arguments& arguments) : evaluator_(evaluator), arguments_(arguments) {}

    std::string run(std::string_view pattern, int depth) {
        if (depth < 0) fail("Max string recursion exceeded");
        std::string out;
        charge_characters(pattern.size());
        for (std::size_t at = 0; at < pattern.size();) {
            check_string(out.size());
            const char c = pattern[at];
            if ((c == '{' || c == '}') && at + 1 < pattern.size() && pattern[at + 1] == c) {
                out += c;
                at += 2;
            } else if (c == '}') {
                fail("Single '}' encountered in format string");
            } else if (c == '{') {
                const std::size_t end = closing(pattern, at);
                out += field(pattern.substr(at + 1, end - at - 1), depth);
                at = end + 1;
            } else {
                out += c;
                ++at;
            }
        }
        return out;
    }

  private:
    static std::size_t closing(std::string_view pattern, std::size_t at) {
        int open = 0;
        for (; at < pattern.size(); ++at) {
            open += pattern[at] == '{' ? 1 : pattern[at] == '}' ? -1 : 0;
            if (open == 0) return at;
        }
        fail("expected '}' before end of string");
    }

    std::string field(std::string_view content, int depth) {
        const std::size_t name_end = std::min(content.find_first_of("!:"), content.size());
        Value value = look_up(content.substr(0, name_end));
        std::string_view rest = content.substr(name_end);
        if (!rest.empty() && rest[0] == '!') {
            if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) fail("expected ':' after conversion specifier");
            if (rest[1] == 's') {
                value = to_string(value);
            } else if (rest[1] == 'r' || rest[1] == 'a') {
                value = repr(value);
            } else {
                fail(cat("Unknown conversion specifier '", rest[1], "'"));
            }
            rest = rest.substr(2);
        }
        const std::string specification = rest.empty() ? "" : run(rest.substr(1), depth - 1);
        return format_value(value, specification);
    }

    Value look_up(std::string_view path) {
        std::size_t at = std::min(path.find_first_of(".["), path.size());
        Value value = argument(path.substr(0, at));
        while (at < path.size()) {
            if (path[at] == '.') {
                const std::size_t end = std::min(path.find_first_of(".[", at + 1), path.size());
                const std::string name(path.substr(at + 1, end - at - 1));
                value = evaluator_.member(value, name);
                at = end;
            } else {
                const std::size_t end = path.find(']', at);
                if (end == path.npos) fail("Missing ']' in format string");
                std::string_view key = path.substr(at + 1, end - at - 1);
                std::size_t digits = 0;
                const int64_t number = read_number(key, digits);
                value =
                    evaluator_.item(value, digits == key.size() && number >= 0 ? Value(Integer{number}) : Value(key));
                at = end + 1;
            }
        }
        return value;
    }

    Value argument(std::string_view name) {
        std::size_t digits = 0;
        const int64_t number = read_number(name, digits);
        if (name.empty() || (number >= 0 && digits == name.size())) {
            const bool automatic = name.empty();
            if (automatic ? manual_ : automatic_ > 0)
                fail("cannot switch between manual field specification and automatic field numbering");
            manual_ = manual_ || !automatic;
            const std::size_t index = automatic ? automatic_++ : static_cast<std::size_t>(number);
            if (index >= arguments_.positional.size())
                fail(cat("Replacement index ", index, " out of range for positional args tuple"));
            return arguments_.positional[index];
        }
        charge(static_cast<int64_t>(arguments_.named.size() / 8));
        for (const auto& [key, value] : arguments_.named) {
            if (key == name) return value;
        }
        fail(cat("KeyError: ", text::repr(name)));
    }

    Evaluator& evaluator_;
    const Arguments& arguments_;
    std::size_t automatic_ = 0;
    bool manual_ = false;
};

}  // namespace

std::string format_braces(Evaluator& evaluator, std::string_view pattern, const Arguments& arguments) {
    return BraceFormatter(evaluator, arguments).run(pattern, 2);
}

}  // namespace unsloth::tokenizer::jinja
