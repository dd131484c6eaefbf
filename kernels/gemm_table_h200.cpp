// Measured on an H200 with cuBLASLt 13.1 (library version 130100), bf16, random operands, the card warm and at its power
// limit; `unsloth-train bench gemm --tune` prints such lines. Tiles hold for any n and k, products for llama-3.1-8b's.
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
};

constexpr GemmTile tiles[] = {
    {GemmForm::nn, 6.312, 900.9, {66, 20, 35, 1, 0, 0, 1, 0, 3}},
    {GemmForm::nn, 7.794, 1209, {66, 29, 35, 1, 0, 0, 1, 0, 3}},
    {GemmForm::nn, 9.403, 2927, {66, 495, 35, 1, 0, 0, 7, 0, 5}},
    {GemmForm::nn, 12.69, 2256, {66, 23, 35, 1, 0, 0, 4, 0, 3}},
    {GemmForm::nn, 12.61, 2660, {66, 24, 35, 1, 0, 0, 7, 0, 5}},
    {GemmForm::nn, 15.82, 4876, {66, 248, 35, 1, 0, 0, 7, 0, 5}},
    {GemmForm::nt, 6.373, 960.4, {66, 20, 35, 1, 0, 0, 3, 0, 5}},
    {GemmForm::nt, 7.963, 1426, {66, 29, 35, 1, 0, 0, 1, 0, 3}},
    {GemmForm::nt, 8.156, 1722, {66, 197, 35, 1, 0, 0, 2, 0, 5}},
    {GemmForm::nt, 8.526, 1825, {66, 201, 35, 1, 0, 0, 2, 0, 5}},
    {GemmForm::nt, 9.577, 2319, {66, 495, 35, 1, 0, 0, 7, 0, 5}},
    {GemmForm::nt, 12.74, 2465, {66, 24, 35, 1, 0, 0, 7, 0, 5}},
    {GemmForm::nt, 12.65, 3572, {66, 23, 35, 1, 0, 0, 4, 0, 3}},
    {GemmForm::nt, 16.24, 3636, {66, 248, 35, 1, 0, 0, 7, 0, 5}},
};

}  // namespace

GemmTable h200_gemm_table() {
    return {products, tiles};
}

}  // namespace unsloth::kernels
