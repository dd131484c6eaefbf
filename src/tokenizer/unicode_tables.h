// Tables made by make_unicode_tables.py and make_unicode_mappings.py, each sorted by its first column.
#pragma once

#include <cstdint>
#include <vector>

namespace unsloth::tokenizer::unicode {

struct Range {
    char32_t first, last;
};
/// Every code point of a range stands for `replacement` (see CategoryShadow).
struct Replacement {
    char32_t first, last, replacement;
};
struct ClassRange {
    char32_t first, last;
    uint32_t combining_class;
};
/// Full canonical decomposition, padded with zeros.
struct Decomposition {
    char32_t code_point, parts[4];
};
struct Composition {
    char32_t first, second, composed;
};
/// Every `step`-th code point of a range becomes itself + distance (modulo 2^32).
struct CaseRun {
    char32_t first, last, step, distance;
};

const std::vector<Range>& word_ranges();             ///< \w of UTS 18, Unicode 16.0
const std::vector<Replacement>& category_drift();    ///< categories that differ between Unicode 14.0 and 18.0
const std::vector<ClassRange>& combining_classes();  ///< non-zero ones, Unicode 9.0
const std::vector<Decomposition>& decompositions();  ///< Unicode 9.0, without Hangul
const std::vector<Composition>& compositions();      ///< Unicode 9.0, without Hangul
const std::vector<Range>& accent_ranges();           ///< marks that StripAccents removes
const std::vector<Range>& punctuation_ranges();      ///< ASCII punctuation and general category P
const std::vector<Range>& numeric_ranges();          ///< general category N, of a later version than \p{N}
const std::vector<CaseRun>& lowercase_runs();        ///< to one character; U+0130 alone becomes two
/// Code point, number of characters, full compatibility decomposition: where it differs from the canonical
/// one.
const std::vector<char32_t>& compatibility_decompositions();

}  // namespace unsloth::tokenizer::unicode
