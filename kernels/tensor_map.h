// Tensor maps: what TMA (Hopper and later) knows of a tensor, made on the host and kept.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

namespace unsloth::kernels {

/// A row-major matrix (or, with box_rows 0, a vector) and the box that one instruction moves. In shared memory a
/// matrix's boxes are swizzled by the bytes of their rows, a vector's are not; elements outside the tensor arrive
/// as zeros.
struct TensorBox {
    const void* data = nullptr;  ///< 16-byte aligned device memory
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    uint16_t box_columns = 0, box_rows = 0;  ///< at most 256 each; a matrix's columns take 32, 64 or 128 bytes
    int64_t rows = 0, columns = 0;
    int64_t row_bytes = 0;  ///< from one row to the next, a multiple of 16
};

/// Host work only, so allowed while a stream is captured. Runtime Error when the driver cannot make tensor maps (before
/// CUDA 12), CheckError when it rejects the box.
CUtensorMap encode_tensor_map(const TensorBox& box);

/// Keeps the tensor maps of the boxes it has seen. Used by one thread at a time.
class TensorMaps {
  public:
    TensorMaps();
    ~TensorMaps();
    TensorMaps(const TensorMaps&) = delete;
    TensorMaps& operator=(const TensorMaps&) = delete;

    /// As encode_tensor_map; a known box costs a look-up. To be copied into a launch's parameters: the reference is
    /// good until the next call.
    const CUtensorMap& get(const TensorBox& box);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::kernels
