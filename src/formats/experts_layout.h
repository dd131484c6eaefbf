// Where the matrices and biases of experts are in tensors that a checkpoint has for all experts of a layer
// (spec::ExpertsSpec::transposed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {

/// A part of a checkpoint's tensor, which has an equal number of values of each expert, one expert after the other. Row
/// n, column k of the part is value first + n · row_stride + k · col_stride of its expert's.
struct ExpertsPart {
    std::string name;            ///< the tensor's
    std::vector<int64_t> shape;  ///< [E, …]
    int64_t first = 0, row_stride = 0, col_stride = 0;
    bool last = true;  ///< no part of the same expert's values follows in tensor_table
    int64_t values_of_each() const;
};
/// nullopt: the checkpoint has the tensor itself, under its own name.
std::optional<ExpertsPart> experts_part(const spec::ModelSpec& spec, const spec::TensorRule& rule);

/// A tensor of a checkpoint, and of the table's tensors those that it holds.
struct StoredTensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<std::size_t> rules;  ///< their places in the table
};
/// All of a checkpoint, in the order of the table.
std::vector<StoredTensor> stored_tensors(const spec::ModelSpec& spec, const std::vector<spec::TensorRule>& table);

/// input Error "model.unsupported": such tensors are not written in 4 or 8 bit.
[[noreturn]] void refuse_quantised_experts(const spec::ModelSpec& spec);

}  // namespace unsloth::formats
