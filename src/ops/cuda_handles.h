// Library handles and caches of one Context. Each operator family keeps its own behind a slot, so that no family's headers
// reach another's.
#pragma once

#include <memory>

namespace unsloth::ops {

/// What an operator family stores in a context: its dynamic type is the family's own.
struct HandleSlot {
    virtual ~HandleSlot() = default;
};

struct CudaHandles {
    std::unique_ptr<HandleSlot> gemm, attention;
};

}  // namespace unsloth::ops
