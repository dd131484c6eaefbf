// Pieces of ctx.workspace for a call's own scratch, in front of what the calls that it makes find.
#pragma once

#include "unsloth/core/error.h"
#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// What a piece takes.
constexpr int64_t piece_bytes(int64_t bytes) {
    constexpr int64_t alignment = 256;
    return (bytes + alignment - 1) / alignment * alignment;
}

/// Takes pieces from the front of ctx.workspace; until its end, calls use the rest as their workspace.
class WorkspaceFront {
  public:
    explicit WorkspaceFront(Context& ctx) : ctx_(ctx), whole_(ctx.workspace) {}
    ~WorkspaceFront() { ctx_.workspace = whole_; }
    WorkspaceFront(const WorkspaceFront&) = delete;
    WorkspaceFront& operator=(const WorkspaceFront&) = delete;

    /// CheckError where the workspace is too small.
    at::Tensor take(at::IntArrayRef sizes, at::ScalarType type) {
        const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
        const int64_t taken = piece_bytes(bytes), there = ctx_.workspace.numel();
        UNSLOTH_CHECK(taken <= there, "attention: ", there, " bytes of workspace are left of ", whole_.numel());
        const at::Tensor piece = ctx_.workspace.narrow(0, 0, bytes).view(type).view(sizes);
        ctx_.workspace = ctx_.workspace.narrow(0, taken, there - taken);
        return piece;
    }

  private:
    Context& ctx_;
    at::Tensor whole_;
};

}  // namespace unsloth::ops
