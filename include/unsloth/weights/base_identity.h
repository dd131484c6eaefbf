// Which base, as this program reads it, this is.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "unsloth/formats/load_plan.h"

namespace unsloth::weights {

/// A name, 32 digits, that two processes of a machine have in common only where all that they make of the checkpoint
/// is the same: by its files as they were when they were mapped (MappedFile::stamp, and their first and last bytes),
/// the build of this program, and the device, which quantises. It reads 128 KiB of a file.
std::string base_identity(const formats::WeightFile& file, at::Device device);

}  // namespace unsloth::weights
