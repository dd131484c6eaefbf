// Views of what a rank has of a matrix that is cut over ranks (spec/slice.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "unsloth/spec/slice.h"
#include "unsloth/weights/layout.h"

namespace unsloth::weights {

inline at::Tensor rows_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    return whole.narrow(0, part.rows.begin, part.rows.size);
}
inline at::Tensor columns_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    return whole.narrow(1, part.columns.begin, part.columns.size);
}
inline at::Tensor part_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    return columns_of(rows_of(whole, part), part);
}

/// Rows of a group that a rank has of each expert, [own, own + rows), and where the first lies in the whole expert.
struct ExpertRows {
    int64_t own = 0, rows = 0, whole = 0;
};
/// Of a group of experts: one run where an expert's rows are whole, else its gate's and its up's apart.
inline std::vector<ExpertRows> rows_of_expert(const LayerLayout& layout, Group g) {
    std::vector<ExpertRows> runs;
    int64_t own = 0, whole = 0;
    for (const Slice& slice : layout[g].slices) {
        if (slice.expert > 0) break;
        const bool joins = !runs.empty() && runs.back().whole + runs.back().rows == whole + slice.part.rows.begin;
        if (joins)
            runs.back().rows += slice.n;
        else
            runs.push_back({own, slice.n, whole + slice.part.rows.begin});
        own += slice.n;
        whole += is_cut_by_inputs(g) ? slice.n : slice.n * layout.tp.size;
    }
    return runs;
}

}  // namespace unsloth::weights
