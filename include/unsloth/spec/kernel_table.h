// Which kernel runs a GEMM: choices that were measured on a card, as data. The built-in ones are in cards/*.json under
// "kernels"; `unsloth-train tune` writes others. A choice never comes from timings of the present run: another kernel
// adds in another order, and a resumed run has to give the bits it would have given.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::spec {

enum class KernelOperator : uint8_t {
    gemm,       ///< a product of bf16 matrices
    gemm_fp8,   ///< of e4m3 matrices, followed by LoRA's own
    gemm_nf4,   ///< by 4-bit weights in tiles; without a choice they are dequantized and go to gemm
    lora_u,     ///< u = x Aᵀ
    lora_dy,    ///< v = dy sB and dB
    attention,  ///< cuDNN's engines (library, where nothing else is said), or our own on tensor cores (portable)
};

/// Which operands a product uses transposed: `nt` is a bᵀ (forward), `nn` a b (the input's gradient).
enum class ProductForm : uint8_t { nn, nt, tn, tt };

enum class KernelSource : uint8_t {
    library,     ///< cuBLASLt's algorithm of `parameters`: as its CUBLASLT_ALGO_CONFIG_* attributes are numbered
    portable,    ///< our own by mma.sync; of gemm_nf4: token groups, strips, warps
    sm90,        ///< our own by wgmma; of gemm_nf4: tokens, split; of gemm_fp8: columns of a tile
    few,         ///< our own of gemm_nf4 forward for up to 8 tokens: tokens
    sm90_pairs,  ///< our own of gemm_nf4 forward by wgmma, with the weights of `few`: tokens, split
};

/// Both ends are included.
struct Interval {
    static constexpr int64_t no_end = std::numeric_limits<int64_t>::max();
    int64_t first = 0, last = no_end;
    bool holds(int64_t x) const { return first <= x && x <= last; }
    bool holds(const Interval& other) const { return first <= other.first && other.last <= last; }
    bool operator==(const Interval&) const = default;
};

/// A GEMM [tokens, k] by [k, n]. Of gemm, k counts the adapters' columns too; of gemm_nf4, n and k are a group's
/// weights' outputs and inputs both ways; of the LoRA GEMMs the wide side is lora_u's k and lora_dy's n, and `rank`
/// is a slice's widest. Of attention, form is nt forward and nn backward, n a batch's longest row (of keys), k
/// head_dim.
struct ProductKey {
    KernelOperator op = KernelOperator::gemm;
    ProductForm form = ProductForm::nt;
    int64_t tokens = 0, n = 0, k = 0, rank = 0;
};

struct KernelChoice {
    KernelOperator op = KernelOperator::gemm;
    std::optional<ProductForm> form = {};  ///< absent: every one
    Interval tokens = {}, n = {}, k = {}, rank = {};
    KernelSource kernel = KernelSource::library;
    std::vector<int64_t> parameters = {};
    /// Empty: the choice for the GEMMs that it covers. Else one candidate of several, of which the one with the least
    /// time over its waves of tiles is taken; of a wave, gemm: {ns for each k, ns}; gemm_fp8: {cost in a GEMM of few
    /// waves, of many}.
    std::vector<double> wave = {};

    bool applies_to(const ProductKey& key) const;
    /// Whether it applies wherever `other` does; after it, `other` has no effect.
    bool covers(const KernelChoice& other) const;
    bool operator==(const KernelChoice&) const = default;
};

/// A card as the driver describes it.
struct KernelCard {
    std::string name;            ///< "NVIDIA H200"
    int compute_capability = 0;  ///< 10 major + minor
    int multiprocessors = 0;     ///< fewer in a slice of a card, for which nothing was measured
    bool operator==(const KernelCard&) const = default;
};

/// What a table was measured with.
struct KernelVersions {
    std::string driver;               ///< "580.65.06"; empty: not known
    int64_t cublaslt = 0, cudnn = 0;  ///< as the libraries number themselves
    int64_t own = 0;                  ///< own_kernels_version
    bool operator==(const KernelVersions&) const = default;
};

/// Of the forms and parameters of our own kernels that tables name; another number: they mean something else.
constexpr int64_t own_kernels_version = 1;

struct KernelTable {
    KernelCard card;
    KernelVersions versions;
    std::string source;  ///< how it was measured
    std::vector<KernelChoice> choices;

    /// The first choice that applies to a GEMM by itself; nullptr: none does.
    const KernelChoice* find(const ProductKey& key) const;
    /// The candidates among which waves of tiles decide.
    std::vector<const KernelChoice*> candidates(const ProductKey& key) const;
    /// Whether there is a choice of either kind.
    bool measured(const ProductKey& key) const;
    /// Before all others, of which those go that it covers.
    void put_first(const KernelChoice& choice);
    bool operator==(const KernelTable&) const = default;
};

/// The built-in table of a card; nullptr where there is none.
std::shared_ptr<const KernelTable> built_in_kernels(const KernelCard& card);

/// The "kernels" of a card's file. input Error, with `source` in it, for a text that is no such file, or whose choices
/// this program cannot read.
KernelTable parse_kernels(const std::string& text, const std::string& source);
/// A file of that form, a choice a line; equal for equal tables.
std::string kernels_text(const KernelTable& table);
std::string choice_text(const KernelChoice& choice);

/// What of a table holds where these versions run: an algorithm of another cuBLASLt may be another one, or none.
KernelTable still_valid(const KernelTable& table, int64_t cublaslt);

/// The texts of cards/*.json.
std::span<const char* const> card_files();

}  // namespace unsloth::spec
