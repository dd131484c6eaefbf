// hardware.kernels: the table of measured kernels that a run uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/model/loader.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::placement {

/// What a run's folder and its checkpoints name the table that it uses.
inline constexpr const char* kernels_file = "kernels.json";

/// auto: the built-in table of the device's card; library: one without choices; else what of that file holds here.
/// usage Error for a file that was measured on another card, or where the device is no GPU. Never nullptr.
std::shared_ptr<const spec::KernelTable> kernel_table(const config::Config& config, at::Device device);

/// The table of the checkpoint in `folder`, where hardware.kernels is auto and it was measured on this card; else
/// kernel_table. A resumed run thus gives the bits that it would have given, with a newer program too.
std::shared_ptr<const spec::KernelTable> kernel_table_of(const std::string& folder, const config::Config& config,
                                                         at::Device device);

/// Products of a layer and of the head that a pass of as many tokens as planned makes, and how many of them the table
/// has no choice for.
struct TunedProducts {
    int64_t all = 0;
    std::vector<std::string> untuned;  ///< "qkv dx"
};
TunedProducts tuned_products(const spec::KernelTable& table, const model::ModelPlan& plan);

/// The line of the log; empty on the CPU.
std::string kernels_line(const spec::KernelTable& table, const model::ModelPlan& plan);

}  // namespace unsloth::placement
