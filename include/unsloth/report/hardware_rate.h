// What a GPU could do, to compare with what a run does.
#pragma once

#include <string>

namespace unsloth::report {

/// Floating-point operations per second of dense bf16 products with fp32 sums, as the maker's data sheet of the card
/// has it at its full power; by the driver's name of the card. 0: not known (a part of a card, a laptop's, no GPU).
double dense_bf16_rate(const std::string& device_name);

}  // namespace unsloth::report
