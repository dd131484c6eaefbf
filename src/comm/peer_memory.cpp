#include "unsloth/comm/peer_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/hex.h"
#include "unsloth/core/shared_segment.h"

#if UNSLOTH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#endif

namespace unsloth::comm {
namespace {

constexpr const char* what = "the ranks' memory for each other";

/// What a rank says of its memory, and how many bytes these are.
std::string offer(const std::string& address, int64_t bytes) {
    return cat(bytes, " ", address);
}
std::pair<std::string, int64_t> read_offer(const std::string& text, int rank) {
    std::istringstream words(text);
    int64_t bytes = -1;
    std::string address;
    if (!(words >> bytes) || bytes < 0 || words.get() != ' ' || !std::getline(words, address))
        throw Error("rank.peer-memory", cat("rank ", rank, " says nothing of its memory for the others"));
    return {address, bytes};
}

std::vector<at::Tensor> share_on_host(Group& group, int64_t bytes) {
    const auto take = [](std::shared_ptr<SharedSegment> segment, int64_t size) {
        return at::from_blob(segment->data(), {size}, [segment](void*) {}, at::kByte);
    };
    const std::shared_ptr<SharedSegment> own = SharedSegment::make(static_cast<std::size_t>(bytes));
    const std::vector<std::string> all = group.gather(offer(own->address(), bytes), what);
    std::vector<at::Tensor> memory;
    for (const int rank : group.ranks_here()) {
        if (rank == group.rank()) {
            memory.push_back(take(own, bytes));
            continue;
        }
        const auto [address, size] = read_offer(all[static_cast<std::size_t>(rank)], rank);
        std::shared_ptr<SharedSegment> theirs = SharedSegment::open(address, static_cast<std::size_t>(size));
        if (theirs == nullptr)
            throw Error("rank.peer-memory",
                        cat("the memory of rank ", rank, " cannot be reached from rank ", group.rank()),
                        "Ranks of one host name must be processes of one user in one container; or set "
                        "distributed.zero_stage below 3.");
        memory.push_back(take(std::move(theirs), size));
    }
    group.barrier(what);
    own->close();
    return memory;
}

#if UNSLOTH_CUDA
cudaIpcMemHandle_t handle_of(const std::string& text, int rank) {
    cudaIpcMemHandle_t handle;
    if (text.size() != 2 * sizeof handle.reserved)
        throw Error("rank.peer-memory", cat("rank ", rank, " offers no memory of a GPU"));
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        handle.reserved[i] = static_cast<char>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
    return handle;
}

at::Tensor on_device(void* data, int64_t bytes, at::Device device, const std::function<void(void*)>& release) {
    return at::for_blob(data, {bytes})
        .deleter(release)
        .options(at::TensorOptions(at::kByte).device(device))
        .target_device(device)
        .make_tensor();
}

/// Allocations of their own: a handle names a whole one.
std::vector<at::Tensor> share_on_gpu(Group& group, at::Device device, int64_t bytes) {
    const c10::cuda::CUDAGuard guard(device);
    const auto check = [&](cudaError_t status, const std::string& call) {
        if (status == cudaSuccess) return;
        (void)cudaGetLastError();
        throw Error("rank.peer-memory", cat(what, ": ", call, ": ", cudaGetErrorString(status)),
                    "Set distributed.zero_stage below 3: each GPU then holds the whole base, or leaves layers "
                    "in host memory.");
    };
    void* own = nullptr;
    check(cudaMalloc(&own, static_cast<std::size_t>(std::max<int64_t>(bytes, 1))), cat(bytes, " bytes"));
    std::vector<at::Tensor> memory(group.ranks_here().size());
    memory[static_cast<std::size_t>(group.place_here())] =
        on_device(own, bytes, device, [](void* data) { cudaFree(data); });
    cudaIpcMemHandle_t handle;
    check(cudaIpcGetMemHandle(&handle, own), "a handle");
    const std::vector<std::string> all =
        group.gather(offer(hex(std::as_bytes(std::span(handle.reserved))), bytes), what);
    for (std::size_t place = 0; place < memory.size(); ++place) {
        const int rank = group.ranks_here()[place];
        if (rank == group.rank()) continue;
        const auto [address, size] = read_offer(all[static_cast<std::size_t>(rank)], rank);
        void* theirs = nullptr;
        check(cudaIpcOpenMemHandle(&theirs, handle_of(address, rank), cudaIpcMemLazyEnablePeerAccess),
              cat("that of rank ", rank));
        memory[place] = on_device(theirs, size, device, [](void* data) { cudaIpcCloseMemHandle(data); });
    }
    group.barrier(what);
    return memory;
}

/// GPUs are numbered alike in the processes of a machine, by their places.
bool reaches_peers(const Group& group, at::Device device) {
    int count = 0;
    const auto here = static_cast<int>(group.ranks_here().size());
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < here) return false;
    for (int other = 0; other < here; ++other) {
        int can = 0;
        if (other != device.index() &&
            (cudaDeviceCanAccessPeer(&can, device.index(), other) != cudaSuccess || can == 0))
            return false;
    }
    return true;
}
#endif

}  // namespace

bool can_share_memory(Group& group, const Communicator* with, [[maybe_unused]] at::Device device) {
    bool can = with != nullptr;
#if UNSLOTH_CUDA
    if (device.is_cuda()) can = can && reaches_peers(group, device);
#endif
    const std::vector<std::string> all = group.gather(can ? "yes" : "no", "which GPUs reach each other");
    return std::all_of(all.begin(), all.end(), [](const std::string& answer) { return answer == "yes"; });
}

std::vector<at::Tensor> share_memory(Group& group, at::Device device, int64_t bytes) {
#if UNSLOTH_CUDA
    if (device.is_cuda()) return share_on_gpu(group, device, bytes);
#endif
    return share_on_host(group, std::max<int64_t>(bytes, 1));
}

}  // namespace unsloth::comm
