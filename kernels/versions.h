// Versions of the libraries that run, as they number themselves.
#pragma once

#include <cstdint>

namespace unsloth::kernels {

int64_t cublaslt_version();  ///< 130100
int64_t cudnn_version();     ///< 91900

}  // namespace unsloth::kernels
