#include "unsloth/ops/multi_tensor_copy.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/adapter_fill.h"
#include "kernels/common/launch.h"
#endif

#include "ops/checks.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"

namespace unsloth::ops {
namespace {

void check_block(const Context& ctx, const FillBlock& block) {
    UNSLOTH_CHECK(block.out.dim() == 2, "a block has ", block.out.dim(), " dimensions");
    check_compute_tensor(ctx, "out", block.out, block.out.sizes());
    if (!block.source.defined()) return;
    const int64_t rows = block.out.size(block.transposed ? 1 : 0), columns = block.out.size(block.transposed ? 0 : 1);
    check_matrix(ctx, "source", block.source, rows, columns, at::kFloat);
}

#ifdef UNSLOTH_CUDA

kernels::AdapterBlock describe(const FillBlock& block) {
    kernels::AdapterBlock b;
    b.source = block.source.defined() ? block.source.const_data_ptr<float>() : nullptr;
    b.source_stride = block.source.defined() ? block.source.stride(0) : 0;
    b.out = block.out.mutable_data_ptr();
    b.stride = block.out.stride(0);
    b.rows = static_cast<int32_t>(block.out.size(block.transposed ? 1 : 0));
    b.columns = static_cast<int32_t>(block.out.size(block.transposed ? 0 : 1));
    b.scale = static_cast<float>(block.scale);
    b.type = dtype_of(block.out);
    b.transposed = block.transposed;
    return b;
}

int64_t block_bytes(std::size_t count) {
    return static_cast<int64_t>(count * sizeof(kernels::AdapterBlock));
}

#endif

}  // namespace

int64_t MultiTensorCopy::bytes(at::Device device, [[maybe_unused]] const std::vector<int64_t>& elements) {
    if (!device.is_cuda()) return 0;
#ifdef UNSLOTH_CUDA
    int64_t tiles = 0;
    for (const int64_t count : elements) tiles += kernels::adapter_tile_count(count);
    return block_bytes(elements.size()) + tiles * static_cast<int64_t>(sizeof(kernels::AdapterTile));
#else
    return 0;
#endif
}

MultiTensorCopy::MultiTensorCopy(Context& ctx, std::vector<FillBlock> blocks, std::vector<int64_t> runs,
                                 at::Tensor storage)
    : blocks_(std::move(blocks)), runs_(std::move(runs)), storage_(std::move(storage)) {
    for (const FillBlock& block : blocks_) check_block(ctx, block);
    runs_.push_back(static_cast<int64_t>(blocks_.size()));
    if (!ctx.is_cuda()) return;
#ifdef UNSLOTH_CUDA
    std::vector<kernels::AdapterBlock> described;
    for (const FillBlock& block : blocks_) described.push_back(describe(block));
    std::vector<kernels::AdapterTile> tiles;
    for (std::size_t run = 0; run + 1 < runs_.size(); ++run) {
        tiles_.push_back(static_cast<int64_t>(tiles.size()));
        const auto of_run = kernels::adapter_tiles(described.data(), runs_[run], runs_[run + 1]);
        tiles.insert(tiles.end(), of_run.begin(), of_run.end());
    }
    tiles_.push_back(static_cast<int64_t>(tiles.size()));
    const int64_t first = block_bytes(described.size()),
                  second = static_cast<int64_t>(tiles.size() * sizeof(kernels::AdapterTile));
    UNSLOTH_CHECK(storage_.nbytes() >= static_cast<std::size_t>(first + second), "the table takes ", first + second,
                  " bytes");
    auto* const device = storage_.mutable_data_ptr<uint8_t>();
    UNSLOTH_CUDA_CHECK(cudaMemcpy(device, described.data(), static_cast<std::size_t>(first), cudaMemcpyHostToDevice));
    UNSLOTH_CUDA_CHECK(
        cudaMemcpy(device + first, tiles.data(), static_cast<std::size_t>(second), cudaMemcpyHostToDevice));
#endif
}

void MultiTensorCopy::run(Context& ctx, int64_t first, int64_t count) const {
    const Region region(ctx, "adapters");
    if (!ctx.is_cuda()) {
        for (int64_t i = runs_[static_cast<std::size_t>(first)]; i < runs_[static_cast<std::size_t>(first + count)];
             ++i) {
            const FillBlock& block = blocks_[static_cast<std::size_t>(i)];
            if (!block.source.defined()) {
                block.out.zero_();
            } else if (block.transposed) {
                block.out.copy_(block.source.t() * block.scale);
            } else {
                copy_2d(ctx, block.source, block.out, block.scale);
            }
        }
        return;
    }
#ifdef UNSLOTH_CUDA
    const auto* const blocks = reinterpret_cast<const kernels::AdapterBlock*>(storage_.const_data_ptr<uint8_t>());
    const auto* const tiles =
        reinterpret_cast<const kernels::AdapterTile*>(storage_.const_data_ptr<uint8_t>() + block_bytes(blocks_.size()));
    const int64_t begin = tiles_[static_cast<std::size_t>(first)],
                  end = tiles_[static_cast<std::size_t>(first + count)];
    kernels::fill_adapters(blocks, tiles + begin, end - begin, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

}  // namespace unsloth::ops
