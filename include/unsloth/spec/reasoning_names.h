// The members of a message that hold an assistant's reasoning.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace unsloth::spec {

/// As data sets, requests and chat templates call it, in the order in which a message's is looked for.
inline constexpr std::array<const char*, 3> reasoning_names = {"reasoning_content", "thinking", "reasoning"};

inline bool is_reasoning(std::string_view name) {
    return std::ranges::find(reasoning_names, name) != reasoning_names.end();
}

}  // namespace unsloth::spec
