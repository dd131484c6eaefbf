// `bench nf4`: products by 4-bit weights, from tiles and by dequantisation and the library's product.
#pragma once

#include <vector>

#include "unsloth/engine_api/engine.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/kernel_table.h"
#include "unsloth/weights/layout.h"

namespace unsloth::bench {

/// Prints a line a product (the groups of a layer, forward and dx, with lora.*'s adapters as a tail) and number of
/// tokens: the time of the library's product by bf16 weights alone, of dequantisation and that product, and of the
/// fastest kernel that reads the 4-bit tiles, with its share of the library's rate; then choices for the tables in
/// cards/*.json. Shapes are those of model.path, of llama-3.1-8b without one. usage Error without a GPU.
void bench_nf4(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request);

/// The fastest kernels of a layer's products by 4-bit weights, for the few tokens at which they beat expanding the
/// weights; weights come from memory. Built with UNSLOTH_CUDA only.
std::vector<spec::KernelChoice> nf4_choices(ops::Context& ctx, const weights::LayerLayout& layout);

}  // namespace unsloth::bench
