// Numbers of the container that its writer and its reader share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unsloth::formats::gguf {

inline constexpr std::string_view magic = "GGUF";
inline constexpr uint32_t version = 3;
inline constexpr std::string_view alignment_key = "general.alignment";
inline constexpr std::size_t default_alignment = 32;
inline constexpr std::size_t most_dimensions = 4;  ///< GGML_MAX_DIMS
inline constexpr std::size_t longest_name = 63;    ///< of a tensor: GGML_MAX_NAME with its end
inline constexpr std::size_t longest_key = 65535;

constexpr std::size_t aligned(std::size_t offset, std::size_t alignment) {
    return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace unsloth::formats::gguf
