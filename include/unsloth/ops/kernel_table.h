// Tables of measured choices of kernels (spec/kernel_table.h) and the device that they are for.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {

/// A CUDA device that is here, as tables name it.
spec::KernelCard kernel_card(at::Device device);

/// Of the libraries that run here and of our kernels. `driver` is left empty: CUDA does not say it
/// (gpu_driver_version() of core/gpu_monitor.h does).
spec::KernelVersions kernel_versions();

/// The choices of `table`, measured on this device's card, that are valid here. Those made with another cuBLASLt, or of
/// our kernels that changed or are not in this build, are dropped; a warning says how many. `source` names it.
std::shared_ptr<const spec::KernelTable> usable_kernels(at::Device device, const spec::KernelTable& table,
                                                        const std::string& source);

/// What of the built-in table of this device's card holds here; without choices on cards that were not measured,
/// without a card too for GPUs that are not here, and on the CPU. Never nullptr.
std::shared_ptr<const spec::KernelTable> built_in_kernels(at::Device device);

}  // namespace unsloth::ops
