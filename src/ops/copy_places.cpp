#include "unsloth/ops/copy_places.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "ops/checks.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/gated_delta.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

int64_t place_bytes(const at::Tensor& data) {
    return static_cast<int64_t>(data.nbytes()) / data.size(0);
}

void check_copies(const Context& ctx, std::span<const at::Tensor> data, std::span<const PlaceCopy> copies) {
    std::set<int32_t> read, written;
    for (const PlaceCopy& copy : copies) {
        read.insert(copy.from);
        UNSLOTH_CHECK(written.insert(copy.to).second, "place ", copy.to, " is written twice");
    }
    for (const int32_t place : written) UNSLOTH_CHECK(!read.contains(place), "place ", place, " is read and written");
    for (const at::Tensor& one : data) {
        check_contiguous(ctx, "places", one, one.sizes(), one.scalar_type());
        const auto there = [&](const std::set<int32_t>& places) {
            return places.empty() || (*places.begin() >= 0 && *places.rbegin() < one.size(0));
        };
        UNSLOTH_CHECK(there(read) && there(written), "copies of places that ", one.sizes(), " has not");
    }
}

#ifdef UNSLOTH_CUDA
void copy_places_cuda(const Context& ctx, std::span<const at::Tensor> data, std::span<const PlaceCopy> copies) {
    using kernels::PlaceCopies;
    for (size_t tensor = 0; tensor < data.size(); tensor += PlaceCopies::most_tensors)
        for (size_t copy = 0; copy < copies.size(); copy += PlaceCopies::most_copies) {
            PlaceCopies p;
            for (const at::Tensor& one :
                 data.subspan(tensor, std::min<size_t>(PlaceCopies::most_tensors, data.size() - tensor))) {
                p.data[p.tensors] = one.mutable_data_ptr();
                p.bytes[p.tensors++] = place_bytes(one);
            }
            for (const PlaceCopy& one :
                 copies.subspan(copy, std::min<size_t>(PlaceCopies::most_copies, copies.size() - copy))) {
                p.from[p.copies] = one.from;
                p.to[p.copies++] = one.to;
            }
            kernels::copy_places(p, stream_of(ctx));
        }
}
#endif

}  // namespace

void copy_places(Context& ctx, std::span<const at::Tensor> data, std::span<const PlaceCopy> copies) {
    const Region region(ctx, "copy_places");
    check_copies(ctx, data, copies);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return copy_places_cuda(ctx, data, copies);
#endif
    for (const at::Tensor& one : data)
        for (const PlaceCopy& copy : copies) {
            auto* const bytes = static_cast<std::byte*>(one.mutable_data_ptr());
            const int64_t size = place_bytes(one);
            std::memcpy(bytes + copy.to * size, bytes + copy.from * size, static_cast<size_t>(size));
        }
}

}  // namespace unsloth::ops
