// What the CPU ranks' sums share.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "unsloth/core/error.h"

namespace unsloth::comm {

inline void require_on_cpu(const at::Tensor& values, const std::string& what) {
    UNSLOTH_CHECK(values.is_cpu() && values.is_contiguous(), what, ": contiguous values of the CPU are expected");
}

inline void require_summable(const at::Tensor& values, const std::string& what) {
    require_on_cpu(values, what);
    UNSLOTH_CHECK(values.scalar_type() == at::kFloat || values.scalar_type() == at::kBFloat16, what,
                  ": sums are of fp32 or bf16");
}

/// work(T()) with the tensor's type.
template <class Work>
void for_summable(const at::Tensor& values, const Work& work) {
    if (values.scalar_type() == at::kFloat)
        work(float());
    else
        work(c10::BFloat16());
}

}  // namespace unsloth::comm
