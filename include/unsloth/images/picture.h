// A small picture of what a model sees of an image, for people.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "unsloth/images/processor.h"

namespace unsloth::images {

/// What the tower gets, put together again: resized as the processor does, with what it added. `values`: as
/// Pixels::values of that grid; CheckError for others. At most `longest` pixels a side, in the same proportions.
Image picture_of(const Processor& processor, const Grid& grid, std::span<const uint8_t> values, int32_t longest);

}  // namespace unsloth::images
