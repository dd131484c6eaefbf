// What of a GPU's memory is in use during a step, as a picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unsloth::planner {

/// Buffers of one kind, and their bytes in each stretch of time.
struct MemoryBand {
    std::string name;
    std::vector<int64_t> bytes;
};

/// Number of kinds that have colours of their own.
constexpr std::size_t most_bands = 9;

/// A stretch is a part of the network one way: its length, and the phase that it belongs to ("forward", "head", …).
struct MemoryOverTime {
    std::vector<double> ms;           ///< of each stretch
    std::vector<std::string> phases;  ///< of each stretch
    std::vector<MemoryBand> bands;    ///< from the bottom, at most most_bands; each as long as `ms`
    int64_t planned = 0;              ///< bytes in all: buffers that are not in use together share theirs

    int64_t most() const;  ///< bytes in use in the stretch that has most
};

/// An SVG document: bands over each other, over time, below a line for what is planned.
std::string memory_svg(const MemoryOverTime& memory, const std::string& title);

}  // namespace unsloth::planner
