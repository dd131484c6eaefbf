// Which warps of the kernels in this program wait, and for how long.
#pragma once

#include <cstdint>

namespace unsloth::kernels {

struct HoldUp {
    uint32_t warps = 0;        ///< of a block, by bit
    uint32_t blocks = 0xFF;    ///< by bit of the block's number modulo 8
    uint32_t nanoseconds = 0;  ///< at each place, about; at most 1,000,000
    uint32_t sometimes = 0;    ///< not 0: at one place in eight, by the clock
};

/// Every compiled file has its own variable and says here how to set it; returns true.
bool list_hold_up(void (*set)(const HoldUp&));

}  // namespace unsloth::kernels
