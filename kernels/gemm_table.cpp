#include "kernels/gemm_table.h"

#include <cmath>

#include "kernels/common/launch.h"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

/// Rows that start at 16-byte units, as TMA of the measured kernels needs them.
bool aligned(const GemmOperand& x) {
    return aligned_16(x.data, {x.row_stride}, spec::DType::bf16);
}

bool of_measured_kind(const GemmCase& p) {
    return p.input_type == spec::DType::bf16 && p.output_type == spec::DType::bf16 && p.bias == nullptr &&
           aligned(p.a) && aligned(p.b) && aligned(p.out) && (p.beta == 0.0f || aligned(p.c));
}

spec::ProductKey key_of(const GemmCase& p) {
    return {.op = spec::KernelOperator::gemm, .form = form_of(p), .tokens = p.m, .n = p.n, .k = p.k};
}

}  // namespace

GemmAlgorithm algorithm_of(const spec::KernelChoice& choice) {
    const std::vector<int64_t>& p = choice.parameters;
    UNSLOTH_CHECK(p.size() == 9, "an algorithm has nine parameters, not ", p.size());
    return {static_cast<int32_t>(p[0]),  static_cast<uint32_t>(p[1]), static_cast<uint32_t>(p[2]),
            static_cast<int32_t>(p[3]),  static_cast<uint32_t>(p[4]), static_cast<uint32_t>(p[5]),
            static_cast<uint32_t>(p[6]), static_cast<uint16_t>(p[7]), static_cast<uint16_t>(p[8])};
}

std::vector<int64_t> parameters_of(const GemmAlgorithm& a) {
    return {a.id, a.tile, a.stages, a.split_k, a.reduction, a.swizzle, a.custom, a.inner_shape, a.cluster};
}

std::string text_of(const GemmAlgorithm& a) {
    std::string text;
    for (const int64_t parameter : parameters_of(a)) text += cat(text.empty() ? "{" : ", ", parameter);
    return text + "}";
}

spec::ProductForm form_of(const GemmCase& p) {
    return p.a.transpose ? (p.b.transpose ? spec::ProductForm::tt : spec::ProductForm::tn)
                         : (p.b.transpose ? spec::ProductForm::nt : spec::ProductForm::nn);
}

const spec::KernelChoice* measured_product(const spec::KernelTable& table, const GemmCase& p) {
    return of_measured_kind(p) ? table.find(key_of(p)) : nullptr;
}

std::vector<const spec::KernelChoice*> measured_tiles(const spec::KernelTable& table, const GemmCase& p) {
    if (!of_measured_kind(p)) return {};
    return table.candidates(key_of(p));
}

double full_waves(double waves) {
    constexpr double rounding = 1e-3;  // of a count that the library divides in single precision
    return std::ceil(waves - rounding);
}

double predicted_ns(const spec::KernelChoice& tile, double waves, int64_t k) {
    return full_waves(waves) * (tile.wave[0] * static_cast<double>(k) + tile.wave[1]);
}

}  // namespace unsloth::kernels
