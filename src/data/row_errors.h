// Words about rows that cannot be taken.
#pragma once

#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/memory_budget.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

/// "file:line: what is wrong", and that such rows can be skipped.
Error error_at(const RowReader& file, int64_t line, const BadRow& reason);

/// Does `work` with a row of `row_bytes` bytes in at most the memory that a row may take: ten times its bytes plus
/// 64 MiB. BadRow beyond that.
template <class Work>
auto within_row_memory(int64_t row_bytes, Work&& work) {
    // Two things come on top: the reader's memory for the row, and memory that is not from operator new (a regular
    // expression's stack, ICU).
    constexpr int64_t mib = int64_t{1} << 20, factor = 10, of_reader = 3, flat = 64 * mib, others = 16 * mib;
    try {
        const MemoryBudget budget((factor - of_reader) * row_bytes + flat - others);
        return std::forward<Work>(work)();
    } catch (const BudgetSpent&) {
        throw BadRow{"data.too-large",
                     cat("the row of ", row_bytes, " bytes needs more memory than a row may take (",
                         (factor * row_bytes + flat) / mib, " MiB: ten times its bytes and 64 MiB)"),
                     "Does its JSON or the chat template make much of little? Else split the row into several."};
    }
}

}  // namespace unsloth::data
