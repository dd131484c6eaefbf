#include "ops/checks.h"

#include <sstream>

namespace unsloth::ops {

namespace {

std::string describe(const at::Tensor& tensor) {
    if (!tensor.defined()) return "undefined";
    std::ostringstream out;
    out << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes() << " with strides " << tensor.strides()
        << " on " << tensor.device().str();
    return out.str();
}

std::string describe(at::IntArrayRef shape) {
    std::ostringstream out;
    out << shape;
    return out.str();
}

void check_layout(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape) {
    UNSLOTH_CHECK(tensor.defined(), name, " is undefined");
    UNSLOTH_CHECK(tensor.device() == ctx.device(), name, " is ", describe(tensor), ", the context's device is ",
                  ctx.device().str());
    UNSLOTH_CHECK(tensor.sizes() == shape, name, " is ", describe(tensor), ", expected shape ", describe(shape));
    UNSLOTH_CHECK(shape.empty() || shape.back() <= 1 || tensor.stride(-1) == 1, name, " is ", describe(tensor),
                  ", expected a contiguous last dimension");
}

}  // namespace

bool is_compute_dtype(at::ScalarType type) {
    return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

void check_tensor(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype) {
    check_layout(ctx, name, tensor, shape);
    UNSLOTH_CHECK(tensor.scalar_type() == dtype, name, " is ", describe(tensor), ", expected ", c10::toString(dtype));
}

void check_compute_tensor(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape) {
    check_layout(ctx, name, tensor, shape);
    UNSLOTH_CHECK(is_compute_dtype(tensor.scalar_type()), name, " is ", describe(tensor),
                  ", expected fp32, bf16 or f16");
}

void check_matrix(const Context& ctx, const char* name, const at::Tensor& tensor, int64_t rows, int64_t columns,
                  std::optional<at::ScalarType> dtype) {
    UNSLOTH_CHECK(tensor.defined() && tensor.dim() == 2, name, " is ", describe(tensor), ", expected a matrix");
    const int64_t shape[] = {rows < 0 ? tensor.size(0) : rows, columns < 0 ? tensor.size(1) : columns};
    if (dtype) {
        check_tensor(ctx, name, tensor, shape, *dtype);
    } else {
        check_compute_tensor(ctx, name, tensor, shape);
    }
    UNSLOTH_CHECK(shape[0] <= 1 || tensor.stride(0) >= shape[1], name, " is ", describe(tensor),
                  ", expected rows that do not overlap");
}

void check_coded(const Context& ctx, const char* name, const CodedMatrix& matrix, int64_t rows, int64_t columns) {
    UNSLOTH_CHECK(matrix.codes.defined(), name, ": there are none");
    const at::ScalarType type = matrix.codes.scalar_type();
    const bool known = type == at::kByte || type == at::kChar;
    check_contiguous(ctx, name, matrix.codes, {rows, columns}, known ? type : at::kFloat8_e4m3fn);
    if (type == at::kChar && matrix.scales.dim() == 2) {
        check_tensor(ctx, name, matrix.scales, {int8_blocks(columns), rows}, at::kFloat);
        UNSLOTH_CHECK(rows == 0 || matrix.scales.stride(0) % 4 == 0, name, ": scales' row stride is ",
                      matrix.scales.stride(0));
    } else {
        check_contiguous(ctx, name, matrix.scales, {rows}, at::kFloat);
    }
    if (matrix.factors.defined()) check_contiguous(ctx, name, matrix.factors, {columns}, at::kBFloat16);
}

void check_contiguous(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                      at::ScalarType dtype) {
    check_tensor(ctx, name, tensor, shape, dtype);
    UNSLOTH_CHECK(tensor.is_contiguous(), name, " is ", describe(tensor), ", expected contiguous memory");
}

}  // namespace unsloth::ops
