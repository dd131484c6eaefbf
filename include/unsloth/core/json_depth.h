// How deep a JSON text nests and how wide its objects are, found before a parser sees it.
#pragma once

#include <cstdint>
#include <string_view>

namespace unsloth {

/// Lists and objects within one another in `text`, which need not be valid JSON; brackets in strings aside. Without
/// recursion.
int json_nesting_depth(std::string_view text);

/// Keys of that object of the text which has most. nlohmann's parser could count them, by a callback, but with one it
/// looks at all elements of a list for each that is a list or an object.
int64_t most_json_keys(std::string_view text);

}  // namespace unsloth
