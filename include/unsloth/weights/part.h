// Views of what a rank has of a matrix that is cut over ranks (spec/slice.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "unsloth/spec/slice.h"

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

}  // namespace unsloth::weights
