// The choice between own kernels and dequantisation followed by the library's product: measurements, by card
// and shape.
#include <array>

#include "unsloth/ops/nf4_gemm.h"
#include "unsloth/spec/measured_card.h"

namespace unsloth::ops {
namespace {

constexpr Nf4GemmChoice portable(int token_groups, int strips, int warps) {
    return {Nf4GemmChoice::Kernel::portable, token_groups, strips, warps, 0, 0};
}
constexpr Nf4GemmChoice sm90(int tokens, int split) {
    return {Nf4GemmChoice::Kernel::sm90, 0, 0, 0, tokens, split};
}

constexpr Nf4GemmChoice pairs(int tokens, int split) {
    return {.kernel = Nf4GemmChoice::Kernel::sm90_pairs, .tokens = tokens, .split = split};
}
constexpr Nf4GemmChoice few(int tokens) {
    return {.kernel = Nf4GemmChoice::Kernel::few, .tokens = tokens};
}

/// Serves products of at most `most_m` tokens that no step before it serves.
struct Step {
    int64_t most_m = 0;
    Nf4GemmChoice choice = {};
};
constexpr int most_steps = 8;

struct Shape {
    bool transposed;
    int64_t n, k;
    std::array<Step, most_steps> steps;  ///< what is left over is {}: dequantise
};

/// NVIDIA H200, CUDA 13.0, r 16, weights that are not in the L2 (`bench nf4`): what needed less than 97 % of the time
/// of dequantisation and cuBLASLt's product; the form measured at M serves what lies between the M before and it. A
/// layer of Llama-3.1-8B, every group both ways. From 2048 tokens on the tiles take 1.1 to 1.4 times as long.
constexpr Shape h200[] = {
    // q, k, v
    {false,
     6144,
     4096,
     {{{4, few(4)},
       {8, few(8)},
       {16, portable(2, 1, 8)},
       {32, sm90(32, 4)},
       {64, pairs(64, 2)},
       {128, sm90(128, 2)},
       {256, sm90(128, 1)}}}},
    {true,
     6144,
     4096,
     {{{8, portable(1, 2, 16)},
       {16, sm90(16, 7)},
       {32, sm90(32, 7)},
       {64, sm90(64, 3)},
       {128, sm90(128, 3)},
       {256, sm90(128, 2)}}}},
    // o
    {false,
     4096,
     4096,
     {{{4, few(4)},
       {8, few(8)},
       {16, portable(2, 1, 8)},
       {32, portable(4, 2, 8)},
       {64, pairs(64, 3)},
       {128, sm90(64, 2)},
       {256, sm90(128, 2)}}}},
    {true,
     4096,
     4096,
     {{{8, portable(1, 2, 16)},
       {16, portable(2, 2, 8)},
       {32, portable(4, 2, 8)},
       {64, sm90(64, 3)},
       {128, sm90(128, 3)}}}},
    // gate, up
    {false,
     28672,
     4096,
     {{{4, few(4)},
       {8, few(8)},
       {16, sm90(16, 1)},
       {32, sm90(32, 1)},
       {64, pairs(64, 1)},
       {128, sm90(128, 1)},
       {512, sm90(256, 1)}}}},
    {true,
     28672,
     4096,
     {{{8, portable(1, 2, 16)},
       {16, sm90(16, 7)},
       {32, sm90(32, 7)},
       {64, sm90(64, 3)},
       {128, sm90(128, 3)},
       {256, sm90(128, 2)}}}},
    // down
    {false,
     4096,
     14336,
     {{{4, few(4)},
       {8, few(8)},
       {16, portable(2, 2, 8)},
       {32, sm90(32, 7)},
       {64, pairs(64, 3)},
       {128, sm90(128, 3)},
       {256, sm90(128, 2)}}}},
    {true,
     4096,
     14336,
     {{{8, portable(1, 4, 8)},
       {16, portable(2, 4, 8)},
       {32, portable(4, 4, 4)},
       {64, sm90(64, 1)},
       {128, sm90(128, 1)},
       {512, sm90(256, 1)}}}},
};

}  // namespace

bool nf4_gemm_measured(std::string_view card) {
    return spec::measured_card(card) == "NVIDIA H200";
}

Nf4GemmChoice nf4_gemm_choice(std::string_view card, int64_t m, int64_t n, int64_t k, bool transposed) {
    if (!nf4_gemm_measured(card)) return {};
    for (const Shape& shape : h200) {
        if (shape.transposed != transposed || shape.n != n || shape.k != k) continue;
        for (const Step& step : shape.steps) {
            if (m <= step.most_m) return step.choice;
        }
    }
    return {};
}

}  // namespace unsloth::ops
