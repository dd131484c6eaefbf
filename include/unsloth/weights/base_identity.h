// Which base, as this program reads it, this is.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <string>

#include "unsloth/formats/load_plan.h"

namespace unsloth::weights {

/// A name, 32 digits, that is equal in two processes of a machine only where all that they make of the checkpoint is
/// the same: by its files as they were when they were mapped (MappedFile::stamp, and their first and last bytes),
/// base_makers(), and the device, which quantises. It reads 128 KiB of a file.
std::string base_identity(const formats::WeightFile& file, at::Device device);

/// The builds (core/build_id.h) of the libraries that make a base's bytes: the engine, and the one without LibTorch,
/// which has the readers and quantisers.
std::array<std::string, 2> base_makers();

}  // namespace unsloth::weights
