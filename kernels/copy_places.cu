// Copies of whole places of what sequences keep, for all tensors of a model in one launch. Ceiling: memory, each byte
// read and written once.
#include "kernels/common/launch.h"
#include "kernels/gated_delta.h"

namespace unsloth::kernels {

namespace {

constexpr int copy_threads = 256, copy_steps = 8;  ///< items of a block: a product of these

template <class Item>
__global__ void __launch_bounds__(copy_threads) copy_places_kernel(const PlaceCopies p) {
    const int64_t items = p.bytes[blockIdx.z] / static_cast<int64_t>(sizeof(Item));
    Item* const data = static_cast<Item*>(p.data[blockIdx.z]);
    const Item* const from = data + p.from[blockIdx.y] * items;
    Item* const to = data + p.to[blockIdx.y] * items;
    const int64_t first = int64_t{blockIdx.x} * copy_threads * copy_steps + threadIdx.x;
#pragma unroll
    for (int step = 0; step < copy_steps; ++step)
        if (const int64_t item = first + step * copy_threads; item < items) to[item] = from[item];
}

}  // namespace

void copy_places(const PlaceCopies& p, cudaStream_t stream) {
    if (p.tensors == 0 || p.copies == 0) return;
    int64_t most = 0;
    bool wide = true;
    for (int i = 0; i < p.tensors; ++i) {
        most = std::max(most, p.bytes[i]);
        wide = wide && p.bytes[i] % 16 == 0 && reinterpret_cast<std::uintptr_t>(p.data[i]) % 16 == 0;
    }
    const auto launch = [&](auto kernel, int64_t item) {
        const int64_t blocks = ceil_div(most, item * copy_threads * copy_steps);
        launch_kernel(kernel,
                      {.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(p.copies),
                                    static_cast<unsigned>(p.tensors)),
                       .threads = dim3(copy_threads),
                       .stream = stream},
                      p);
    };
    if (wide)
        launch(copy_places_kernel<uint4>, 16);
    else
        launch(copy_places_kernel<uint8_t>, 1);
}

}  // namespace unsloth::kernels
