// Measured on an H200 with cuBLASLt 13.1 (library version 130100), bf16, random operands, the card warm and at its
// power limit (700 W, 1.4 GHz of 1.98 in large products); `unsloth-train bench gemm --tune` prints such lines. Tiles
// hold for any n and k, products for llama-3.1-8b's.
//
// Tiles of 256 rows or columns are entered with 0.95 of the time per k that they take alone: they read their operands
// less often, need less energy for it, and leave it to the rest of the step. `bench step --tune` finds them 2 to 8 %
// faster than their own times say (8 x 2048 and 2 x 2048 tokens, a base product of a layer at a time).
#include "kernels/gemm_table_h200.h"

namespace unsloth::kernels {
namespace {

constexpr GemmProduct products[] = {
    // 128 rows: qkv, o, gate+up; their gradients
    {65, 128, 6144, 4096, GemmForm::nt, {66, 17, 35, 1, 0, 0, 0, 0, 4}},
    {65, 128, 4096, 4096, GemmForm::nt, {66, 27, 35, 1, 0, 0, 2, 0, 7}},
    {65, 128, 28672, 4096, GemmForm::nt, {66, 165, 35, 1, 0, 0, 2, 0, 3}},
    {65, 128, 4096, 6144, GemmForm::nn, {66, 15, 35, 1, 0, 0, 1, 0, 5}},
    {65, 128, 4096, 4096, GemmForm::nn, {66, 15, 35, 1, 0, 0, 1, 0, 5}},
    {65, 128, 4096, 28672, GemmForm::nn, {66, 21, 35, 4, 2, 0, 2, 0, 5}},
    // 512 rows: the gradients of gate+up and down
    {385, 512, 4096, 28672, GemmForm::nn, {66, 20, 35, 1, 0, 0, 3, 0, 2}},
    {385, 512, 14336, 4096, GemmForm::nn, {66, 28, 35, 1, 0, 0, 0, 0, 8}},
    // gate+up by the time of the step, which the waves of its many tiles do not tell
    {3969, 16384, 28672, 4096, GemmForm::nt, {66, 201, 35, 1, 0, 0, 2, 0, 5}},
    // lm_head and its gradient, in chunks of 1024 rows
    {513, 1024, 128256, 4096, GemmForm::nt, {66, 184, 35, 1, 0, 0, 2, 0, 5}},
    {513, 1024, 4096, 128256, GemmForm::nn, {66, 23, 35, 1, 0, 0, 5, 0, 3}},
};

// Beside each: the rows and columns of the output that a tile computes.
constexpr GemmTile tiles[] = {
    {GemmForm::nn, 6.17, 776.1, {66, 20, 35, 1, 0, 0, 3, 0, 5}},    // 128 x 128
    {GemmForm::nn, 6.235, 772.1, {66, 20, 35, 1, 0, 0, 1, 0, 3}},   // 128 x 128
    {GemmForm::nn, 6.59, 1356, {66, 405, 35, 1, 0, 0, 3, 0, 5}},    // 136 x 128
    {GemmForm::nn, 6.901, 2292, {66, 406, 35, 1, 0, 0, 5, 0, 3}},   // 144 x 128
    {GemmForm::nn, 7.519, 1223, {66, 459, 35, 1, 0, 0, 3, 0, 5}},   // 104 x 192
    {GemmForm::nn, 7.726, 723, {66, 29, 35, 1, 0, 0, 1, 0, 3}},     // 160 x 128
    {GemmForm::nn, 8.121, 1158, {66, 197, 35, 1, 0, 0, 2, 0, 5}},   // 128 x 168
    {GemmForm::nn, 8.518, 766, {66, 201, 35, 1, 0, 0, 2, 0, 5}},    // 128 x 176
    {GemmForm::nn, 9.479, 2403, {66, 31, 35, 1, 0, 0, 7, 0, 5}},    // 128 x 192
    {GemmForm::nn, 11.90, 2593, {66, 24, 35, 1, 0, 0, 6, 0, 5}},    // 128 x 256
    {GemmForm::nn, 11.92, 2459, {66, 23, 35, 1, 0, 0, 5, 0, 3}},    // 256 x 128
    {GemmForm::nt, 5.789, 603.2, {66, 403, 35, 1, 0, 0, 3, 0, 5}},  // 112 x 128
    {GemmForm::nt, 6.208, 827.5, {66, 404, 35, 1, 0, 0, 3, 0, 3}},  // 120 x 128
    {GemmForm::nt, 6.398, 835.1, {66, 20, 35, 1, 0, 0, 3, 0, 5}},   // 128 x 128
    {GemmForm::nt, 6.383, 1077, {66, 20, 35, 1, 0, 0, 1, 0, 3}},    // 128 x 128
    {GemmForm::nt, 6.725, 1213, {66, 405, 35, 1, 0, 0, 1, 0, 3}},   // 136 x 128
    {GemmForm::nt, 7.754, 1140, {66, 459, 35, 1, 0, 0, 3, 0, 5}},   // 104 x 192
    {GemmForm::nt, 7.963, 1152, {66, 29, 35, 1, 0, 0, 1, 0, 3}},    // 160 x 128
    {GemmForm::nt, 8.336, 1555, {66, 197, 35, 1, 0, 0, 2, 0, 5}},   // 128 x 168
    {GemmForm::nt, 8.661, 1646, {66, 201, 35, 1, 0, 0, 0, 0, 5}},   // 128 x 176
    {GemmForm::nt, 12.24, 3328, {66, 23, 35, 1, 0, 0, 4, 0, 3}},    // 256 x 128
    {GemmForm::nt, 12.21, 3158, {66, 24, 35, 1, 0, 0, 5, 0, 5}},    // 128 x 256
};

}  // namespace

GemmTable h200_gemm_table() {
    return {products, tiles};
}

}  // namespace unsloth::kernels
