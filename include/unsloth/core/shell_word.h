// Words of command lines that are printed for people to copy.
#pragma once

#include <string>

namespace unsloth {

/// The word as a POSIX shell reads it back: in quotes where it has more than letters, digits and -_./:@%+=,
inline std::string shell_word(const std::string& word) {
    constexpr const char* plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:@%+=,";
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

}  // namespace unsloth
