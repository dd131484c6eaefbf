// Tensors for operator tests: strided slices inside guarded storage, devices, and comparison with an allowed error.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace unsloth::testing {

/// How a tensor lies in its storage.
enum class Layout {
    packed,     ///< contiguous
    wide,       ///< columns of a wider buffer; rows start at multiples of 16 bytes where the shape allows
    unaligned,  ///< columns of a wider buffer at an odd offset and with an odd stride: no 16-byte access is legal
};

inline const char* name_of(Layout layout) {
    return layout == Layout::packed ? "packed" : layout == Layout::wide ? "wide" : "unaligned";
}

inline constexpr Layout all_layouts[] = {Layout::packed, Layout::wide, Layout::unaligned};
inline const std::vector<at::ScalarType> compute_dtypes = {at::kFloat, at::kBFloat16, at::kHalf};

/// Fills the storage around a slice; exact in every dtype.
inline constexpr double guard_value = 77;

/// The whole storage as one row.
inline at::Tensor storage_of(const at::Tensor& slice) {
    const auto elements = static_cast<int64_t>(slice.storage().nbytes() / slice.element_size());
    return slice.as_strided({elements}, {1}, 0);
}

/// A tensor [T, C] or [T, H, d] of guard values whose rows lie as `layout` says.
inline at::Tensor make_slice(at::IntArrayRef shape, at::ScalarType dtype, Layout layout) {
    int64_t columns = 1;
    for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
    int64_t offset = 0;
    int64_t stride = columns;
    if (layout == Layout::wide) offset = 8, stride = (columns + 7) / 8 * 8 + 24;
    if (layout == Layout::unaligned) offset = 3, stride = (columns + 7) / 8 * 8 + 5;
    const at::Tensor storage = at::full({offset + shape[0] * stride + 16}, guard_value, at::TensorOptions(dtype));
    if (shape.size() == 1) return storage.as_strided(shape, {1}, offset);
    if (shape.size() == 2) return storage.as_strided(shape, {stride, 1}, offset);
    return storage.as_strided(shape, {stride, shape[2], 1}, offset);
}

/// A slice that holds `values` (converted to `dtype`).
inline at::Tensor slice_of(const at::Tensor& values, at::ScalarType dtype, Layout layout) {
    const at::Tensor slice = make_slice(values.sizes(), dtype, layout);
    slice.copy_(values);
    return slice;
}

/// A slice of NaN: whoever reads it before writing is found out.
inline at::Tensor poisoned_slice(at::IntArrayRef shape, at::ScalarType dtype, Layout layout) {
    return make_slice(shape, dtype, layout).fill_(std::numeric_limits<double>::quiet_NaN());
}

/// A copy on `device` with the same strides and the same surroundings.
inline at::Tensor copy_with_storage(const at::Tensor& slice, at::Device device) {
    const at::Tensor storage = storage_of(slice).to(device, slice.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    return storage.as_strided(slice.sizes(), slice.strides(), slice.storage_offset());
}

/// Everything outside the slice is as `before` had it. Both on the CPU.
inline void expect_untouched_outside(const at::Tensor& slice, const at::Tensor& before, const std::string& what) {
    const at::Tensor outside = at::ones(storage_of(slice).sizes(), at::kBool);
    outside.as_strided(slice.sizes(), slice.strides(), slice.storage_offset()).zero_();
    EXPECT_TRUE(at::equal(storage_of(slice).masked_select(outside), storage_of(before).masked_select(outside)))
        << what << ": memory outside the slice was written";
}

/// Bitwise equality of two slices and of what surrounds them (NaN equals itself).
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
    const auto view = a.element_size() == 4 ? at::kInt : a.element_size() == 2 ? at::kShort : at::kByte;
    return at::equal(storage_of(a).view(view), storage_of(b).view(view));
}

/// |actual - expected| <= relative * |expected| + absolute * max|expected| + floor.
struct Tolerance {
    double relative = 0;
    double absolute = 0;
    double floor = 0;
};

/// For a result computed in fp32 and rounded once: half a unit in the last place, and fp32 arithmetic's error.
inline Tolerance tolerance_of(at::ScalarType dtype) {
    switch (dtype) {
        case at::kBFloat16:
            return {1.01 / 256, 1e-5, 0};
        case at::kHalf:
            return {1.02 / 2048, 1e-5, 6e-8};
        case at::kFloat:
            return {4e-6, 4e-6, 5e-7};  // the floor: terms of order 1 that cancel
        default:
            return {0, 0, 0};
    }
}

/// Compares with an fp64 (or integer) expectation; the worst element is reported.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, Tolerance allowed,
                         const std::string& what) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
    if (actual.numel() == 0) return;
    const at::Tensor a = actual.to(at::kDouble).contiguous();
    const at::Tensor e = expected.to(at::kDouble).contiguous();
    ASSERT_TRUE(e.isfinite().all().item<bool>()) << what << ": the expectation itself is not finite";
    EXPECT_TRUE(a.isfinite().all().item<bool>())
        << what << ": " << at::sum(~a.isfinite()).item<int64_t>() << " of " << a.numel() << " elements are not finite";
    const at::Tensor limit = e.abs() * allowed.relative + e.abs().max() * allowed.absolute + allowed.floor;
    const at::Tensor excess = ((a - e).abs() - limit).nan_to_num(0.0).flatten();
    const int64_t worst = excess.argmax().item<int64_t>();
    EXPECT_LE(excess[worst].item<double>(), 0)
        << what << ": element " << worst << " is " << a.flatten()[worst].item<double>() << ", expected "
        << e.flatten()[worst].item<double>() << " within " << limit.flatten()[worst].item<double>();
}

}  // namespace unsloth::testing
