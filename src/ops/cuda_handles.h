// Library handles that live as long as a Context. Each operator that needs one derives its own HandleSlot (cuBLASLt
// handle + plan cache, cuDNN handle + graph cache) in its own file and creates it at first use.
#pragma once

#include <memory>

namespace unsloth::ops {

struct HandleSlot {
    virtual ~HandleSlot() = default;
};

struct CudaHandles {
    std::unique_ptr<HandleSlot> gemm;        ///< made and used by gemm's CUDA part
    std::unique_ptr<HandleSlot> gemm_coded;  ///< made and used by gemm_coded's CUDA part
    std::unique_ptr<HandleSlot> attention;   ///< made and used by attention's CUDA part
    std::unique_ptr<HandleSlot> lora;        ///< made and used by the LoRA products' CUDA part
    std::unique_ptr<HandleSlot> grouped;     ///< made and used by the grouped products' CUDA part
};

}  // namespace unsloth::ops
