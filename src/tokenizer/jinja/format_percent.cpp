// "%s" % values.
#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/format_field.h"
#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

class PercentFormatter {
  public:
    PercentFormatter(std::string_view pattern, const Value& values) : pattern_(pattern), values_(values) {
        if (values.is_sequence(Sequence::Kind::tuple)) {
            list_ = values.sequence().items;
        } else {
            list_ = {values};
            // Python lets anything with subscripts stay unused.
            optional_ = values.is(Value::Kind::dict) || values.is_undefined() ||
                        (values.is(Value::Kind::sequence) && length(values));
        }
    }

    std::string run() {
        charge_characters(pattern_.size());
        while (at_ < pattern_.size()) {
            check_string(out_.size());
            if (pattern_[at_] != '%') {
                out_ += pattern_[at_++];
            } else {
                ++at_;
                one();
            }
        }
        if (taken_ < list_.size() && !optional_) fail("not all arguments converted during string formatting");
        return std::move(out_);
    }

  private:
    const Value& next() {
        if (taken_ >= list_.size()) fail("not enough arguments for format string");
        return list_[taken_++];
    }

    int64_t number_or_star() {
        if (at_ < pattern_.size() && pattern_[at_] == '*') {
            ++at_;
            const Value& value = next();
            if (!value.is_integral()) fail("* wants int");
            const int64_t n = to_index(value, "a width");
            if (n > widest_field || n < -widest_field) fail("a format width of more than a million");
            return n;
        }
        return read_number(pattern_, at_);
    }

    void one() {
        Field field;
        const Value* named = nullptr;
        if (at_ < pattern_.size() && pattern_[at_] == '(') {
            const std::size_t end = pattern_.find(')', at_);
            if (end == pattern_.npos) fail("incomplete format key");
            if (!values_.is(Value::Kind::dict)) fail("format requires a mapping");
            const std::string_view key = pattern_.substr(at_ + 1, end - at_ - 1);
            named = values_.dict().find(key);
            if (!named) fail(cat("KeyError: ", text::repr(key)));
            at_ = end + 1;
        }
        for (; at_ < pattern_.size(); ++at_) {
            const char c = pattern_[at_];
            if (c == '-') {
                field.align = '<';
            } else if (c == '0') {
                if (field.align != '<') field.align = '=';
            } else if (c == '+' || (c == ' ' && field.sign == '-')) {
                field.sign = c;
            } else if (c == '#') {
                field.alternate = true;
            } else if (c != ' ') {
                break;
            }
        }
        if (const int64_t width = number_or_star(); width < -1) {
            field.align = '<';
            field.width = -width;
        } else {
            field.width = std::max<int64_t>(width, 0);
        }
        if (at_ < pattern_.size() && pattern_[at_] == '.') {
            ++at_;
            field.precision = std::max<int64_t>(number_or_star(), 0);
        }
        if (at_ >= pattern_.size()) fail("incomplete format");
        field.type = pattern_[at_++];
        if (field.type == '%') {
            out_ += '%';
            return;
        }
        convert(field, named ? *named : next());
    }

    void convert(Field& field, const Value& value) {
        const bool numeric = std::string_view("diuoxXeEfFgG").find(field.type) != std::string_view::npos;
        if (field.align == '=') {
            if (numeric)
                field.fill = "0";
            else
                field.align = '>';
        }
        if (!numeric && field.align == '\0') field.align = '>';
        switch (field.type) {
            case 's':
                out_ += write_string(field, to_string(value));
                return;
            case 'r':
            case 'a':
                out_ += write_string(field, repr(value));
                return;
            case 'c':
                return character(field, value);
            case 'd':
            case 'i':
            case 'u':
            case 'o':
            case 'x':
            case 'X':
                return integer(field, value);
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G':
                if (value.is_undefined()) fail(value.undefined_message());
                if (!value.is_number()) fail(cat("must be real number, not ", type_name(value)));
                out_ += write_float(field, value.floating());
                return;
            default:
                fail(cat("unsupported format character '", field.type, "'"));
        }
    }

    void integer(const Field& field, const Value& value) {
        if (value.is_undefined()) fail(value.undefined_message());
        const bool decimal = field.type == 'd' || field.type == 'i' || field.type == 'u';
        if (!value.is_number() || (!decimal && !value.is_integral())) {
            fail(cat("%", field.type, " format: ", decimal ? "a real number" : "an integer", " is required, not ",
                     type_name(value)));
        }
        if (value.is_integral()) {
            out_ += write_integer(field, value.integer());
            return;
        }
        if (!std::isfinite(value.floating())) fail("cannot convert float infinity or NaN to integer");
        if (std::fabs(value.floating()) > 1e38) fail("integers of more than 127 bits are not supported");
        out_ += write_integer(field, static_cast<Integer>(value.floating()));
    }

    void character(const Field& field, const Value& value) {
        if (value.is_string() && text::length(value.string()) == 1) {
            out_ += write_string(field, value.string());
        } else if (value.is_integral() && value.integer() >= 0 && value.integer() <= 0x10FFFF) {
            std::string c;
            unicode::append(c, static_cast<char32_t>(value.integer()));
            out_ += write_string(field, c);
        } else {
            fail("%c requires int or char");
        }
    }

    std::string_view pattern_;
    const Value& values_;
    Items list_;
    bool optional_ = false;
    std::size_t at_ = 0, taken_ = 0;
    std::string out_;
};

}  // namespace

std::string format_percent(std::string_view pattern, const Value& values) {
    return PercentFormatter(pattern, values).run();
}

}  // namespace unsloth::tokenizer::jinja
