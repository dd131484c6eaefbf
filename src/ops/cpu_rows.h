// Rows of a tensor as fp32 on the CPU: operators compute in fp32 and round once where they write.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <vector>

namespace unsloth::ops::cpu {

/// `count` contiguous elements at `source` as fp32.
void load_floats(const void* source, at::ScalarType type, int64_t count, float* out);

/// Rounds to nearest, ties to even.
void store_floats(const float* source, int64_t count, void* out, at::ScalarType type);

/// Row access to a [R, C] or [R, H, C] tensor; keeps pointers, not the tensor.
class Rows {
  public:
    explicit Rows(const at::Tensor& tensor);

    /// Row as fp32: the tensor's own memory when it is fp32, else `scratch` (columns() floats), filled.
    const float* read(int64_t row, float* scratch) const { return read(row, 0, scratch); }
    const float* read(int64_t row, int64_t head, float* scratch) const;
    /// Copies columns [begin, begin + count) of a row into `out`.
    void read_into(int64_t row, int64_t begin, int64_t count, float* out) const;

    void write(int64_t row, const float* values) const { write(row, 0, values); }
    void write(int64_t row, int64_t head, const float* values) const;

    int64_t rows() const { return rows_; }
    int64_t heads() const { return heads_; }
    int64_t columns() const { return columns_; }

  private:
    char* at(int64_t row, int64_t head) const;

    char* data_;
    at::ScalarType type_;
    int64_t element_size_;
    int64_t rows_, heads_, columns_;
    int64_t row_stride_, head_stride_;
};

/// Sum of term(i) for i < count in 16 interleaved parts: a fixed order that the compiler can vectorise.
template <class Term>
float lane_sum(int64_t count, Term term) {
    constexpr int64_t lanes = 16;
    float parts[lanes] = {};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        for (int64_t lane = 0; lane < lanes; ++lane) parts[lane] += term(i + lane);
    }
    for (int64_t lane = 0; i < count; ++i, ++lane) parts[lane] += term(i);
    for (int64_t width = lanes / 2; width > 0; width /= 2) {
        for (int64_t lane = 0; lane < width; ++lane) parts[lane] += parts[lane + width];
    }
    return parts[0];
}

/// Rows that one task should take so that tasks are worth starting.
inline int64_t grain_size(int64_t columns) {
    return std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1));
}

/// Lowers *first to `code`, from any thread.
void report_site(uint32_t* first, uint32_t code);

/// True when every value is finite.
bool all_finite_values(const float* values, int64_t count);

}  // namespace unsloth::ops::cpu
