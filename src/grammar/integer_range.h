// The whole numbers of a range as a regular expression.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::grammar {

/// Digits of numbers with as many digits: between two of them, both included.
inline std::string digits_between(const std::string& low, const std::string& high) {
    if (low.empty()) return "";
    const auto digit = [](char first, char last) {
        return first == last ? std::string(1, first) : cat("[", std::string(1, first), "-", std::string(1, last), "]");
    };
    const std::string low_rest = low.substr(1), high_rest = high.substr(1);
    if (low.front() == high.front()) return low.front() + digits_between(low_rest, high_rest);
    const std::string zeros(low_rest.size(), '0'), nines(low_rest.size(), '9');
    std::vector<std::string> parts;
    char first = low.front(), last = high.front();
    if (low_rest != zeros) parts.push_back(first++ + digits_between(low_rest, nines));
    if (high_rest != nines) parts.push_back(last-- + digits_between(zeros, high_rest));
    if (first <= last)
        parts.push_back(digit(first, last) + (low_rest.empty() ? "" : cat("[0-9]{", low_rest.size(), "}")));
    std::string all = parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) all += "|" + parts[i];
    return parts.size() == 1 ? all : "(" + all + ")";
}

/// From `least` to `most`, which has 15 digits at most; least <= most.
inline std::string integer_range_regex(int64_t least, int64_t most) {
    std::string all;
    const auto add = [&](const std::string& sign, int64_t low, int64_t high) {
        while (low <= high) {
            const std::string first = std::to_string(low);
            const int64_t last = std::min<int64_t>(high, std::stoll(std::string(first.size(), '9')));
            all += cat(all.empty() ? "" : "|", sign, digits_between(first, std::to_string(last)));
            low = last + 1;
        }
    };
    if (least < 0) add("-", most < 0 ? -most : 1, -least);
    if (most >= 0) add("", std::max<int64_t>(least, 0), most);
    return "(" + all + ")";
}

}  // namespace unsloth::grammar
