// The measured algorithms of the NVIDIA H200.
#pragma once

#include "kernels/gemm_table.h"

namespace unsloth::kernels {

GemmTable h200_gemm_table();

}  // namespace unsloth::kernels
