// Descriptors of tensors for the bulk copy engine (Hopper and later), made on the host and kept.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

namespace unsloth::kernels {

/// A row-major matrix (or, with box_rows 0, a vector) and the box that one copy moves. Equal ones share a
/// descriptor.
struct TensorBox {
    const void* data = nullptr;  ///< 16-byte aligned device memory
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    uint32_t box_columns = 0,
             box_rows = 0;  ///< at most 256 each; a matrix's columns take 32, 64 or 128 bytes
    int64_t rows = 0, columns = 0;
    int64_t row_bytes = 0;  ///< from one row to the next, a multiple of 16
};

/// Boxes of a matrix are written to shared memory swizzled by the bytes of their rows, those of a vector
/// plainly; what lies outside the tensor arrives as zeros. Used by one thread at a time.
class TensorMaps {
  public:
    /// Runtime Error when the driver has no such function (before CUDA 12).
    TensorMaps();
    ~TensorMaps();
    TensorMaps(const TensorMaps&) = delete;
    TensorMaps& operator=(const TensorMaps&) = delete;

    /// Host work only, so allowed while a stream is captured; a known box costs a look-up. The descriptor is
    /// to be copied into a launch's parameters: the reference is good until the next call. CheckError when
    /// the driver rejects the box.
    const CUtensorMap& get(const TensorBox& box);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::kernels
