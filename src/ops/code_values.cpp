#include "ops/code_values.h"

namespace unsloth::ops {

at::Tensor levelled_values(const CodedMatrix& matrix) {
    if (!is_int8(matrix)) return matrix.codes.view(at::kFloat8_e4m3fn).to(at::kFloat).mul_(matrix.scales.unsqueeze(1));
    const at::Tensor codes = matrix.codes.to(at::kFloat);
    if (matrix.scales.dim() == 1) return codes * matrix.scales.unsqueeze(1);
    return codes * matrix.scales.t().repeat_interleave(int8_block, 1).narrow(1, 0, codes.size(1));
}

at::Tensor values_of(const CodedMatrix& x) {
    const at::Tensor values = levelled_values(x);
    return x.factors.defined() ? values / x.factors.to(at::kFloat) : values;
}

}  // namespace unsloth::ops
