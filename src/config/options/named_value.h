// A value that has a name: read and written as a word, and held as something else.
#pragma once

#include <utility>

#include "unsloth/config/option.h"

namespace unsloth::config {

/// Unlike a synonym, the word is also what is written of the option.
inline void named_value(Option& option, const std::string& word, const Json& meant) {
    option.synonym(word, meant);
    option.get = [get = std::move(option.get), word, meant] {
        Json value = get();
        return value == meant ? Json(word) : value;
    };
    option.set = [set = std::move(option.set), word, meant](const Json& value) { set(value == word ? meant : value); };
}

}  // namespace unsloth::config
