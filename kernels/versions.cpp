#include "kernels/versions.h"

#include <cublasLt.h>
#include <cudnn.h>

namespace unsloth::kernels {

int64_t cublaslt_version() {
    return static_cast<int64_t>(cublasLtGetVersion());
}

int64_t cudnn_version() {
    return static_cast<int64_t>(cudnnGetVersion());
}

}  // namespace unsloth::kernels
