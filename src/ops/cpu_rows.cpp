#include "ops/cpu_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "ops/checks.h"

namespace unsloth::ops::cpu {

namespace {

template <class T>
void load_as(const void* source, int64_t count, float* out) {
    const T* values = static_cast<const T*>(source);
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(values[i]);
}

template <class T>
void store_as(const float* source, int64_t count, void* out) {
    T* values = static_cast<T*>(out);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(source[i]);
}

}  // namespace

void load_floats(const void* source, at::ScalarType type, int64_t count, float* out) {
    switch (type) {
        case at::kFloat:
            return load_as<float>(source, count, out);
        case at::kBFloat16:
            return load_as<at::BFloat16>(source, count, out);
        case at::kHalf:
            return load_as<at::Half>(source, count, out);
        default:
            UNSLOTH_CHECK(false, "rows of ", c10::toString(type));
    }
}

void store_floats(const float* source, int64_t count, void* out, at::ScalarType type) {
    switch (type) {
        case at::kFloat:
            return store_as<float>(source, count, out);
        case at::kBFloat16:
            return store_as<at::BFloat16>(source, count, out);
        case at::kHalf:
            return store_as<at::Half>(source, count, out);
        default:
            UNSLOTH_CHECK(false, "rows of ", c10::toString(type));
    }
}

Rows::Rows(const at::Tensor& tensor)
    : data_(static_cast<char*>(tensor.data_ptr())),
      type_(tensor.scalar_type()),
      element_size_(static_cast<int64_t>(tensor.element_size())),
      rows_(tensor.size(0)),
      heads_(tensor.dim() == 3 ? tensor.size(1) : 1),
      columns_(tensor.size(-1)),
      row_stride_(tensor.stride(0)),
      head_stride_(tensor.dim() == 3 ? tensor.stride(1) : 0) {
    UNSLOTH_CHECK(tensor.dim() == 2 || tensor.dim() == 3, "a tensor of ", tensor.dim(), " dimensions");
}

char* Rows::at(int64_t row, int64_t head) const {
    return data_ + (row * row_stride_ + head * head_stride_) * element_size_;
}

const float* Rows::read(int64_t row, int64_t head, float* scratch) const {
    if (type_ == at::kFloat) return reinterpret_cast<const float*>(at(row, head));
    load_floats(at(row, head), type_, columns_, scratch);
    return scratch;
}

void Rows::read_into(int64_t row, int64_t begin, int64_t count, float* out) const {
    load_floats(at(row, 0) + begin * element_size_, type_, count, out);
}

void Rows::write(int64_t row, int64_t head, const float* values) const {
    store_floats(values, columns_, at(row, head), type_);
}

void report_site(uint32_t* first, uint32_t code) {
    std::atomic_ref<uint32_t> place(*first);
    uint32_t seen = place.load();
    while (code < seen && !place.compare_exchange_weak(seen, code)) {
    }
}

bool all_finite_values(const float* values, int64_t count) {
    return std::isfinite(lane_sum(count, [&](int64_t i) { return values[i] * 0.f; }));
}

}  // namespace unsloth::ops::cpu
