#include "unsloth/core/suggest.h"

#include <algorithm>
#include <cctype>
#include <limits>

namespace unsloth {

int edit_distance(std::string_view from, std::string_view to) {
    const auto same = [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    };
    const std::size_t rows = from.size() + 1, columns = to.size() + 1;
    std::vector<std::vector<int>> distance(rows, std::vector<int>(columns));
    for (std::size_t i = 0; i < rows; ++i) distance[i][0] = static_cast<int>(i);
    for (std::size_t j = 0; j < columns; ++j) distance[0][j] = static_cast<int>(j);
    for (std::size_t i = 1; i < rows; ++i) {
        for (std::size_t j = 1; j < columns; ++j) {
            const int substituted = distance[i - 1][j - 1] + (same(from[i - 1], to[j - 1]) ? 0 : 1);
            distance[i][j] = std::min({substituted, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
            if (i > 1 && j > 1 && same(from[i - 1], to[j - 2]) && same(from[i - 2], to[j - 1]))
                distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
        }
    }
    return distance.back().back();
}

bool is_like(std::string_view name, std::string_view candidate) {
    const auto [shorter, longer] = std::minmax({name.size(), candidate.size()});
    const std::size_t most_edits = std::min<std::size_t>(longer / 3, 2);  // of two letters, one makes another word
    if (longer - shorter > most_edits) return false;  // without the table, which a long name makes large
    return edit_distance(name, candidate) <= static_cast<int>(most_edits);
}

std::vector<std::string> nearest(const std::string& name, const std::vector<std::string>& candidates) {
    constexpr std::size_t most = 3;
    int best = std::numeric_limits<int>::max();
    std::vector<std::string> found;
    for (const auto& candidate : candidates) {
        if (!is_like(name, candidate)) continue;
        const int distance = edit_distance(name, candidate);
        if (distance < best) found.clear();
        best = std::min(best, distance);
        const bool known = std::find(found.begin(), found.end(), candidate) != found.end();
        if (distance == best && found.size() < most && !known) found.push_back(candidate);
    }
    return found;
}

std::string did_you_mean(const std::vector<std::string>& names, const std::string& prefix) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "Did you mean " : " or ") + prefix + name;
    return text.empty() ? text : text + "?";
}

}  // namespace unsloth
