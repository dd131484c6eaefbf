// The CUDA forms of nf4_gemm.h (built with UNSLOTH_CUDA only).
#pragma once

#include "unsloth/ops/nf4_gemm.h"

namespace unsloth::ops {

void make_nf4_tiles_cuda(Context& ctx, const spec::Quant4View& weight, uint8_t* tiles);
void dequantize_nf4_tiles_cuda(Context& ctx, const spec::Nf4TilesView& weight, const at::Tensor& out_NK);
std::vector<Nf4GemmChoice> nf4_gemm_forms_cuda(at::Device device, bool transposed);
bool nf4_gemm_supported_cuda(const Nf4Gemm& args);
/// `args` is checked, M is positive.
void nf4_gemm_cuda(Context& ctx, const Nf4Gemm& args, const Nf4GemmChoice& choice);

}  // namespace unsloth::ops
