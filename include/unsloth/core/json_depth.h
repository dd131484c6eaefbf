// How deep a JSON text nests, found before a parser sees it.
#pragma once

#include <string_view>

namespace unsloth {

/// Lists and objects within one another in `text`, which need not be valid JSON; brackets in strings aside. Without
/// recursion.
int json_nesting_depth(std::string_view text);

}  // namespace unsloth
