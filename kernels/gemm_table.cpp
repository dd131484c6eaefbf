#include "kernels/gemm_table.h"

#include <cmath>

#include "kernels/common/launch.h"
#include "kernels/gemm_table_h200.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/measured_card.h"

namespace unsloth::kernels {
namespace {

const char* name_of(GemmForm form) {
    constexpr const char* names[] = {"nn", "nt", "tn", "tt"};
    return names[static_cast<int>(form)];
}

/// Rows that start at 16-byte units, as TMA of the measured kernels needs them.
bool aligned(const GemmOperand& x) {
    return aligned_16(x.data, {x.row_stride}, spec::DType::bf16);
}

bool of_measured_kind(const GemmCase& p) {
    return p.input_type == spec::DType::bf16 && p.output_type == spec::DType::bf16 && p.bias == nullptr &&
           aligned(p.a) && aligned(p.b) && aligned(p.out) && (p.beta == 0.0f || aligned(p.c));
}

}  // namespace

GemmForm form_of(const GemmCase& p) {
    return p.a.transpose ? (p.b.transpose ? GemmForm::tt : GemmForm::tn)
                         : (p.b.transpose ? GemmForm::nt : GemmForm::nn);
}

GemmTable measured_table(const GemmCard& card) {
    if (spec::measured_card(card.name) != "NVIDIA H200" || card.compute_capability != 90 || card.multiprocessors != 132)
        return {};
    GemmTable table = h200_gemm_table();
    // What few rows take is the memory's rate, which is the card's own.
    if (card.name != "NVIDIA H200") table.products = {};
    return table;
}

const GemmAlgorithm* measured_product(const GemmTable& table, const GemmCase& p) {
    if (!of_measured_kind(p)) return nullptr;
    for (const GemmProduct& e : table.products)
        if (e.m_first <= p.m && p.m <= e.m_last && e.n == p.n && e.k <= p.k && p.k <= e.k + widest_tail &&
            e.form == form_of(p))
            return &e.algorithm;
    return nullptr;
}

std::vector<GemmTile> measured_tiles(const GemmTable& table, const GemmCase& p) {
    constexpr int64_t narrowest = 1024;
    std::vector<GemmTile> tiles;
    if (!of_measured_kind(p) || p.m < fewest_rows_of_waves || p.n < narrowest || p.k < narrowest) return tiles;
    for (const GemmTile& tile : table.tiles)
        if (tile.form == form_of(p)) tiles.push_back(tile);
    return tiles;
}

double full_waves(double waves) {
    constexpr double rounding = 1e-3;  // of a count that the library divides in single precision
    return std::ceil(waves - rounding);
}

double predicted_ns(const GemmTile& tile, double waves, int64_t k) {
    return full_waves(waves) * (tile.ns_per_k * static_cast<double>(k) + tile.ns);
}

std::string table_text(const GemmAlgorithm& a) {
    return cat("{", a.id, ", ", a.tile, ", ", a.stages, ", ", a.split_k, ", ", a.reduction, ", ", a.swizzle, ", ",
               a.custom, ", ", a.inner_shape, ", ", a.cluster, "}");
}

std::string table_text(const GemmProduct& p) {
    return cat("{", p.m_first, ", ", p.m_last, ", ", p.n, ", ", p.k, ", GemmForm::", name_of(p.form), ", ",
               table_text(p.algorithm), "},");
}

std::string tile_text(GemmForm form, double ns_per_k, double ns, const std::string& algorithm) {
    return cat("{GemmForm::", name_of(form), ", ", ns_per_k, ", ", ns, ", ", algorithm, "},");
}

}  // namespace unsloth::kernels
