#include "unsloth/ops/upload.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "unsloth/core/parallel.h"

namespace unsloth::ops {
namespace {

constexpr int64_t staged_bytes = int64_t{32} << 20;
constexpr int64_t bytes_a_thread = int64_t{1} << 20;
constexpr std::size_t least_bytes = std::size_t{4} << 20;  // below that one thread is as fast

/// A buffer that is filled while the other is copied.
struct Staged {
    at::Tensor memory;
    std::optional<c10::Event> copied;
};

/// By several threads, which also fault a map's pages in.
void copy_bytes(const std::byte* from, std::byte* to, int64_t bytes) {
    parallel_ranges(bytes, bytes_a_thread, [&](int64_t first, int64_t last) {
        std::memcpy(to + first, from + first, static_cast<std::size_t>(last - first));
    });
}

void copy_staged(const at::Tensor& host, const at::Tensor& to) {
    const auto* const from = static_cast<const std::byte*>(host.const_data_ptr());
    const auto bytes = static_cast<int64_t>(host.nbytes());
    const at::Tensor to_b = at::from_blob(to.data_ptr(), {bytes}, to.options().dtype(at::kByte));
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    std::array<Staged, 2> buffers;
    for (int64_t begin = 0, number = 0; begin < bytes; begin += staged_bytes, ++number) {
        const int64_t count = std::min(staged_bytes, bytes - begin);
        Staged& staged = buffers[static_cast<std::size_t>(number % 2)];
        if (staged.copied)
            staged.copied->synchronize();
        else
            staged.memory = at::empty({count}, at::TensorOptions(at::kByte).pinned_memory(true));
        copy_bytes(from + begin, static_cast<std::byte*>(staged.memory.data_ptr()), count);
        to_b.narrow(0, begin, count).copy_(staged.memory.narrow(0, 0, count), /*non_blocking=*/true);
        staged.copied.emplace(c10::DeviceType::CUDA);
        staged.copied->record(guard.getStream(to.device()));
    }
}

}  // namespace

void copy_from_host(const at::Tensor& values, const at::Tensor& to) {
    const bool bytes = values.is_cpu() && values.nbytes() >= least_bytes && values.scalar_type() == to.scalar_type() &&
                       values.sizes() == to.sizes() && values.is_contiguous() && to.is_contiguous();
    if (bytes && to.is_cpu())
        copy_bytes(static_cast<const std::byte*>(values.const_data_ptr()), static_cast<std::byte*>(to.data_ptr()),
                   static_cast<int64_t>(values.nbytes()));
    else if (bytes && to.is_cuda() && !values.is_pinned())
        copy_staged(values, to);
    else
        to.copy_(values);
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
    if (!device.is_cuda()) return host;
    const at::Tensor there = at::empty(host.sizes(), host.options().device(device));
    copy_from_host(host, there);
    return there;
}

}  // namespace unsloth::ops
