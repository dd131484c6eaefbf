// Chooses the kernel of a product by tiled 4-bit weights: the measured one, elsewhere one that the shape allows.
#include <algorithm>

#include "unsloth/ops/nf4_gemm.h"

#if UNSLOTH_CUDA
#include "kernels/common/launch.h"
#endif

namespace unsloth::ops {
namespace {

using Kernel = Nf4GemmChoice::Kernel;

/// Products of more tokens read dequantized weights, unless something else was measured: dequantizing writes and
/// reads four times a weight's bytes in addition, which pays off for more tokens.
constexpr int64_t most_tokens = 64, most_tokens_sm90 = 256;

bool runs_wgmma(const spec::KernelCard& card) {
#if UNSLOTH_CUDA
    if (!kernels::built_for_hopper()) return false;
#endif
    return card.compute_capability == 90;
}

Nf4GemmChoice from_table(const spec::KernelChoice& choice) {
    const auto parameter = [&](std::size_t i) { return static_cast<int>(choice.parameters.at(i)); };
    switch (choice.kernel) {
        case spec::KernelSource::sm90:
            return {.kernel = Kernel::sm90, .tokens = parameter(0), .split = parameter(1)};
        case spec::KernelSource::sm90_pairs:
            return {.kernel = Kernel::sm90_pairs, .tokens = parameter(0), .split = parameter(1)};
        case spec::KernelSource::few:
            return {.kernel = Kernel::few, .tokens = parameter(0)};
        default:
            return {Kernel::portable, parameter(0), parameter(1), parameter(2)};
    }
}

/// The number of blocks in a cluster that share a reduction: they fill the card, of `resident` blocks a multiprocessor,
/// less a tenth because clusters do not end where its groups of multiprocessors do.
int split_of(const spec::KernelCard& card, int64_t n, int64_t m, int tokens) {
    const int64_t blocks = (n + 127) / 128 * ((m + tokens - 1) / tokens), resident = tokens <= 32 ? 2 : 1;
    return static_cast<int>(std::clamp<int64_t>(card.multiprocessors * resident * 9 / 10 / blocks, 1, 8));
}

}  // namespace

Nf4GemmChoice nf4_gemm_rule(const spec::KernelCard& card, int64_t m, int64_t n, int64_t k, bool transposed) {
    const bool whole_tiles = n % spec::nf4_tile == 0 && k % spec::nf4_tile == 0;
    if (transposed || !whole_tiles || card.compute_capability < 80) return {};
    if (m <= 8) return {.kernel = Kernel::few, .tokens = m <= 4 ? 4 : 8};
    if (runs_wgmma(card) && m <= most_tokens_sm90) {
        const int tokens = m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
        return {.kernel = m > 32 && m <= 128 ? Kernel::sm90_pairs : Kernel::sm90,
                .tokens = tokens,
                .split = split_of(card, n, m, tokens)};
    }
    if (m > most_tokens) return {};
    if (m <= 16) return {Kernel::portable, 2, 1, 8};
    return m <= 32 ? Nf4GemmChoice{Kernel::portable, 4, 2, 8} : Nf4GemmChoice{Kernel::portable, 8, 2, 4};
}

Nf4GemmChoice nf4_gemm_choice(const spec::KernelTable& table, int64_t m, int64_t n, int64_t k, bool transposed) {
    const spec::ProductForm form = transposed ? spec::ProductForm::nn : spec::ProductForm::nt;
    const auto entry = [&](int64_t tokens) {
        return table.find({.op = spec::KernelOperator::gemm_nf4, .form = form, .tokens = tokens, .n = n, .k = k});
    };
    if (const spec::KernelChoice* measured = entry(m)) return from_table(*measured);
    // A shape that was measured with fewer tokens has no entry where expanding was faster.
    return entry(1) == nullptr ? nf4_gemm_rule(table.card, m, n, k, transposed) : Nf4GemmChoice{};
}

Nf4GemmChooser nf4_gemm_chooser(std::shared_ptr<const spec::KernelTable> table) {
    const bool any = std::any_of(table->choices.begin(), table->choices.end(),
                                 [](const spec::KernelChoice& c) { return c.op == spec::KernelOperator::gemm_nf4; });
    if (!any && table->card.compute_capability < 80) return {};
    return [table = std::move(table)](int64_t m, int64_t n, int64_t k, bool transposed) {
        return nf4_gemm_choice(*table, m, n, k, transposed);
    };
}

}  // namespace unsloth::ops
