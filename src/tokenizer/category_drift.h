// What lets PCRE2 and ICU of any system give the answers of one Unicode version.
#pragma once

#include <vector>

namespace unsloth::tokenizer::unicode {

/// Every code point of a range is looked up as `replacement`, which has the general category that the range has in
/// Unicode 16.0 (Hugging Face tokenizers 0.23) in every version from 14.0 to 18.0, and as many bytes in UTF-8.
struct Replacement {
    char32_t first, last, replacement;
};
/// The characters whose category differs between Unicode 14.0 and 18.0, sorted.
const std::vector<Replacement>& category_drift();

}  // namespace unsloth::tokenizer::unicode
