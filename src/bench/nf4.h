// `bench nf4`: products by 4-bit weights, from tiles and by dequantisation and the library's product.
#pragma once

#include "unsloth/config/engine.h"

namespace unsloth::bench {

/// Prints a line a product (the groups of a layer, forward and dx, with lora.*'s adapters as a tail) and number of
/// tokens: the time of the library's product by bf16 weights alone, of dequantisation and that product, and of the
/// fastest kernel that reads the 4-bit tiles, with its share of the library's rate; then lines for the table in
/// src/ops/nf4_gemm_choice.cpp. Shapes are those of model.path, of llama-3.1-8b without one. usage Error without a GPU.
void bench_nf4(const config::LoadedConfig& loaded, const config::BenchRequest& request);

}  // namespace unsloth::bench
