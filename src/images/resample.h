// Resizing as Pillow 13 does it, byte for byte.
#pragma once

#include "unsloth/images/image.h"
#include "unsloth/images/processor.h"

namespace unsloth::images {

/// Two passes with weights of 22 bits, each rounded to bytes; a pass that changes nothing is skipped.
Image resize(Image image, Size size, Filter filter);

}  // namespace unsloth::images
