// Reads what a pass gives in fp64, a few rows at a time.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

namespace unsloth::commands {

/// Elements that are converted to fp64 at a time: what they take is no part of the memory plan.
inline constexpr int64_t most_elements = int64_t{1} << 22;

/// use(rows [n, C] in fp64, the first one's number), a few rows at a time.
template <class Use>
void each_rows(const at::Tensor& x_TC, const Use& use) {
    const int64_t at_a_time = std::max<int64_t>(1, most_elements / std::max<int64_t>(x_TC.size(1), 1));
    for (int64_t begin = 0; begin < x_TC.size(0); begin += at_a_time) {
        const int64_t rows = std::min(at_a_time, x_TC.size(0) - begin);
        use(x_TC.narrow(0, begin, rows).to(at::kDouble), begin);
    }
}

}  // namespace unsloth::commands
