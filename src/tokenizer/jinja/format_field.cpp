#include "tokenizer/jinja/format_field.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

std::string padded(const Field& field, std::string_view sign, const std::string& body, char by_default) {
    const char align = field.align ? field.align : by_default;
    const int64_t used = static_cast<int64_t>(sign.size() + text::length(body));
    const int64_t missing = std::max<int64_t>(0, field.width - used);
    const auto fill = [&](int64_t n) {
        std::string out;
        for (; n > 0; --n) out += field.fill;
        return out;
    };
    if (align == '=') return cat(sign, fill(missing), body);
    const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    return cat(fill(left), sign, body, fill(missing - left));
}

std::string sign_of(const Field& field, bool negative) {
    if (negative) return "-";
    return field.sign == '-' ? "" : std::string(1, field.sign);
}

void separate_thousands(std::string& digits, char separator) {
    const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    for (std::size_t at = whole; at > 3;) digits.insert(at -= 3, 1, separator);
}

std::string in_base(Integer value, int base, bool capital) {
    std::string out;
    do {
        const int digit = static_cast<int>(value % base);
        out += (capital ? "0123456789ABCDEF" : "0123456789abcdef")[digit < 0 ? -digit : digit];
        value /= base;
    } while (value != 0);
    std::reverse(out.begin(), out.end());
    return out;
}

}  // namespace

std::string write_integer(const Field& field, Integer value) {
    const int base = field.type == 'b' ? 2 : field.type == 'o' ? 8 : (field.type | 0x20) == 'x' ? 16 : 10;
    std::string digits = in_base(value, base, field.type == 'X');
    const int64_t missing = field.precision - static_cast<int64_t>(digits.size());
    if (missing > 0) digits.insert(0, static_cast<std::size_t>(missing), '0');
    if (field.separator) separate_thousands(digits, field.separator);
    std::string prefix = sign_of(field, value < 0);
    if (field.alternate && base != 10) prefix += cat("0", field.type);
    return padded(field, prefix, digits, '>');
}

std::string write_float(const Field& field, double value) {
    std::string digits;
    const double size = std::fabs(value);
    const bool percent = field.type == '%';
    if (!std::isfinite(value)) {
        digits = std::isnan(value) ? "nan" : "inf";
        if (field.type >= 'A' && field.type <= 'Z')
            std::transform(digits.begin(), digits.end(), digits.begin(), ::toupper);
    } else if (field.type == '\0' && field.precision < 0) {
        digits = repr(size);
    } else {
        const char type = percent ? 'f' : field.type == '\0' || field.type == 'n' ? 'g' : field.type;
        const int precision = field.precision < 0 ? 6 : static_cast<int>(field.precision);
        const std::string pattern = cat(field.alternate ? "%#.*" : "%.*", type);
        const double shown = percent ? size * 100 : size;
        const int length = std::snprintf(nullptr, 0, pattern.c_str(), precision, shown);
        digits.resize(static_cast<std::size_t>(length) + 1);
        std::snprintf(digits.data(), digits.size(), pattern.c_str(), precision, shown);
        digits.pop_back();
        // Without a type a float still looks like one.
        if (field.type == '\0' && digits.find_first_not_of("0123456789") == digits.npos) digits += ".0";
    }
    if (percent) digits += '%';
    if (field.separator) separate_thousands(digits, field.separator);
    return padded(field, sign_of(field, std::signbit(value) && !std::isnan(value)), digits, '>');
}

std::string write_string(const Field& field, std::string_view s) {
    if (field.precision >= 0) s = s.substr(0, text::byte_of(s, static_cast<std::size_t>(field.precision)));
    return padded(field, "", std::string(s), '<');
}

int64_t read_number(std::string_view pattern, std::size_t& at) {
    if (at >= pattern.size() || pattern[at] < '0' || pattern[at] > '9') return -1;
    int64_t value = 0;
    for (; at < pattern.size() && pattern[at] >= '0' && pattern[at] <= '9'; ++at) {
        value = value * 10 + (pattern[at] - '0');
        if (value > widest_field) fail("a format width of more than a million");
    }
    return value;
}

}  // namespace unsloth::tokenizer::jinja
