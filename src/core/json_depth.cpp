#include "unsloth/core/json_depth.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace unsloth {

namespace {

/// Calls `see` with each character outside of strings.
template <class See>
void walk(std::string_view text, See see) {
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string && c == '\\')
            ++i;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string)
            see(c);
    }
}

}  // namespace

int json_nesting_depth(std::string_view text) {
    int depth = 0, deepest = 0;
    walk(text, [&](char c) {
        if (c == '{' || c == '[')
            deepest = std::max(deepest, ++depth);
        else if (c == '}' || c == ']')
            --depth;
    });
    return deepest;
}

int64_t most_json_keys(std::string_view text) {
    std::vector<int64_t> open{0};  // keys of the objects and lists that are open, the text itself the first
    int64_t most = 0;
    walk(text, [&](char c) {
        if (c == '{' || c == '[')
            open.push_back(0);
        else if ((c == '}' || c == ']') && open.size() > 1)
            open.pop_back();
        else if (c == ':')
            most = std::max(most, ++open.back());
    });
    return most;
}

}  // namespace unsloth
