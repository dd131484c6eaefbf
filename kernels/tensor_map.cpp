#include "kernels/tensor_map.h"

#include <cuda_runtime_api.h>

#include <unordered_map>

#include "kernels/common/byte_key.h"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);
/// Addresses change from step to step only as often as buffers do; more than this many means that they always
/// do.
constexpr std::size_t most_kept = 8192;

/// The driver's function, found through the runtime, so that nothing links libcuda.
Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess || !function)
        throw Error("device.failed",
                    cat("the CUDA driver has no cuTensorMapEncodeTiled (", cudaGetErrorString(status), ")"),
                    "Install a driver for CUDA 12 or later.");
    return reinterpret_cast<Encode>(function);
}

uint32_t bytes_of(CUtensorMapDataType type) {
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8:
            return 1;
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
            return 2;
        default:
            UNSLOTH_CHECK(type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "no box of type ", static_cast<int>(type));
            return 4;
    }
}

CUtensorMapSwizzle swizzle_of(uint32_t row_bytes) {
    switch (row_bytes) {
        case 32:
            return CU_TENSOR_MAP_SWIZZLE_32B;
        case 64:
            return CU_TENSOR_MAP_SWIZZLE_64B;
        default:
            UNSLOTH_CHECK(row_bytes == 128, "a box's rows take ", row_bytes, " bytes");
            return CU_TENSOR_MAP_SWIZZLE_128B;
    }
}

static_assert(std::has_unique_object_representations_v<TensorBox>, "padding would be compared");

}  // namespace

CUtensorMap encode_tensor_map(const TensorBox& box) {
    static const Encode encode = find_encode();
    const bool matrix = box.box_rows > 0;
    const CUtensorMapSwizzle swizzle =
        matrix ? swizzle_of(box.box_columns * bytes_of(box.type)) : CU_TENSOR_MAP_SWIZZLE_NONE;
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(box.columns), static_cast<cuuint64_t>(box.rows)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(box.row_bytes)};  // of all dimensions but the first
    const cuuint32_t box_sizes[] = {box.box_columns, box.box_rows}, element_strides[] = {1, 1};
    CUtensorMap map;
    const CUresult status = encode(&map, box.type, matrix ? 2 : 1, const_cast<void*>(box.data), sizes, strides,
                                   box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    UNSLOTH_CHECK(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", static_cast<int>(status), " for [",
                  box.rows, ", ", box.columns, "] of type ", static_cast<int>(box.type), ", row bytes ", box.row_bytes,
                  ", box ", box.box_rows, " x ", box.box_columns, ", at ", box.data);
    return map;
}

struct TensorMaps::Impl {
    std::unordered_map<TensorBox, CUtensorMap, ByteHash<TensorBox>, ByteEqual<TensorBox>> known;
};

TensorMaps::TensorMaps() : impl_(std::make_unique<Impl>()) {}
TensorMaps::~TensorMaps() = default;

const CUtensorMap& TensorMaps::get(const TensorBox& box) {
    const auto found = impl_->known.find(box);
    if (found != impl_->known.end()) return found->second;
    if (impl_->known.size() >= most_kept) impl_->known.clear();
    return impl_->known.emplace(box, encode_tensor_map(box)).first->second;
}

}  // namespace unsloth::kernels
