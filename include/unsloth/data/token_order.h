// Tokens grouped by id: what the backward of an embedding needs to add each row once, in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace unsloth::data {

/// Places of the tokens of a batch, grouped by token id. Group g, the places order[starts[g]] ...
/// order[starts[g + 1] - 1] (ascending), holds id unique[g]; ids ascend. Empty when it was not asked for.
struct TokenOrder {
    std::vector<int32_t> order;   ///< [T]
    std::vector<int32_t> unique;  ///< [U] distinct ids, ascending
    std::vector<int32_t> starts;  ///< [U + 1] offsets into order

    bool empty() const { return order.empty(); }
};

/// Stable sort by id (least significant digit radix sort, O(T) per byte of the largest id). No id may be
/// negative.
TokenOrder sort_tokens(std::span<const int32_t> ids_T);

}  // namespace unsloth::data
