// The merging of byte pair encoding (Sennrich et al. 2016): the pair of lowest rank first, the leftmost of
// equals.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/flat_map.h"

namespace unsloth::tokenizer {

/// A token within a word and the number of bytes that it covers (at least 1).
struct Symbol {
    int32_t id;
    uint32_t length;
};

/// Merges until no pair is left that may be; time is close to linear in the number of symbols.
void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols);

}  // namespace unsloth::tokenizer
