// One formatted value: where "%5.2f" and "{:5.2f}" come together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

constexpr int64_t widest_field = 1'000'000;

/// How one value is to be written; both notations end here.
struct Field {
    std::string fill = " ";
    char align = '\0';  ///< '<', '>', '^', '=' (behind the sign), or by type
    char sign = '-';
    bool alternate = false;
    int64_t width = 0, precision = -1;
    char separator = '\0';  ///< ',' or '_' between thousands
    char type = '\0';
};

std::string write_integer(const Field& field, Integer value);
std::string write_float(const Field& field, double value);
std::string write_string(const Field& field, std::string_view s);

/// A whole number in `pattern` from `at`, which moves behind it; -1 without one. Failure for more than a
/// million.
int64_t read_number(std::string_view pattern, std::size_t& at);

}  // namespace unsloth::tokenizer::jinja
