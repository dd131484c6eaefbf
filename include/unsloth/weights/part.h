// Views of what a rank has of a matrix that is cut over ranks (spec/slice.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/spec/slice.h"
#include "unsloth/weights/layout.h"

namespace unsloth::weights {

/// Rows [own, own + rows) of what a rank has, and the position of the first of them in the whole.
struct RowRun {
    int64_t own = 0, rows = 0, whole = 0;
};
inline std::vector<RowRun> row_runs(const spec::MatrixSlice& part) {
    std::vector<RowRun> runs{{0, part.rows.size, part.rows.begin}};
    for (const spec::Range& more : part.more_rows)
        runs.push_back({runs.back().own + runs.back().rows, more.size, more.begin});
    return runs;
}

/// CheckError where they are several runs.
inline at::Tensor rows_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    UNSLOTH_CHECK(part.more_rows.empty(), "rows in several runs are no view");
    return whole.narrow(0, part.rows.begin, part.rows.size);
}
/// A copy where they are several runs.
inline at::Tensor joined_rows_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    if (part.more_rows.empty()) return rows_of(whole, part);
    std::vector<at::Tensor> parts;
    for (const RowRun& run : row_runs(part)) parts.push_back(whole.narrow(0, run.whole, run.rows));
    return at::cat(parts);
}
inline at::Tensor columns_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    return whole.narrow(1, part.columns.begin, part.columns.size);
}
/// As joined_rows_of.
inline at::Tensor part_of(const at::Tensor& whole, const spec::MatrixSlice& part) {
    return columns_of(joined_rows_of(whole, part), part);
}

/// Of each expert of a group: one run where its rows are whole, else its gate's and its up's apart.
inline std::vector<RowRun> rows_of_expert(const LayerLayout& layout, Group g) {
    std::vector<RowRun> runs;
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
