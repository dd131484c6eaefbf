// What a reference says of rows: the log-probabilities of their two sequences, made once.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "unsloth/data/batch.h"

namespace unsloth::objective {

/// Empty: zeros, as if the reference were sure of everything.
class References {
  public:
    References() = default;
    /// For rows with ids below `rows`.
    explicit References(int64_t rows);
    bool empty() const { return !values_.defined(); }
    /// Keeps a batch's sequences, two a row; `losses`: -log p of its targets under the reference, fp32 on the CPU.
    void set(const data::Batch& batch, const at::Tensor& losses);
    /// Of a batch's segments, in order.
    std::vector<float> of(const data::Batch& batch) const;
    /// fp32 [rows, 2] on the CPU: what ranks that scored a part each add up.
    const at::Tensor& values() const { return values_; }

  private:
    at::Tensor values_;
};

}  // namespace unsloth::objective
