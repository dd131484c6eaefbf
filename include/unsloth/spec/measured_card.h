// Which card's measurements serve a card.
#pragma once

#include <string_view>

namespace unsloth::spec {

/// The card under whose name choices of kernels were measured that serve `name` (as the driver says it) too; `name`
/// itself otherwise. The H100 SXM has the H200's die: as many multiprocessors and bytes of L2, and its power limit;
/// memory alone is slower (`bench step` on it: docs/benchmarks.md).
constexpr std::string_view measured_card(std::string_view name) {
    return name == "NVIDIA H100 80GB HBM3" ? "NVIDIA H200" : name;
}

}  // namespace unsloth::spec
