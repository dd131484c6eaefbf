#include "unsloth/config/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::config {
namespace {

constexpr int64_t all_percent = 100;

/// "20%" or "500"; false: neither.
bool read_bound(std::string text, std::optional<int64_t>& bound, bool& percent) {
    text = trimmed(text);
    if (text.empty()) return true;
    if (text.ends_with('%')) {
        percent = true;
        text.pop_back();
    }
    std::erase(text, '_');  // of thousands
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, number);
    if (failure != std::errc() || stop != end) return false;
    bound = number;
    return true;
}

bool is_percent(const std::optional<int64_t>& bound) {
    return !bound || std::abs(*bound) <= all_percent;
}

bool read_part(const std::string& text, SplitPart& part) {
    const std::size_t open = text.find('[');
    part.name = trimmed(text.substr(0, open));
    if (part.name.find_first_of("]:()") != std::string::npos) return false;
    if (open == std::string::npos) return true;
    const std::string rest = trimmed(text.substr(open + 1));
    const std::size_t colon = rest.find(':');
    if (!rest.ends_with(']') || colon == std::string::npos) return false;
    const bool read = read_bound(rest.substr(0, colon), part.from, part.percent) &&
                      read_bound(rest.substr(colon + 1, rest.size() - colon - 2), part.to, part.percent);
    return read && (!part.percent || (is_percent(part.from) && is_percent(part.to)));
}

}  // namespace

std::pair<int64_t, int64_t> SplitPart::range(int64_t rows) const {
    const auto place = [&](const std::optional<int64_t>& bound, int64_t absent) {
        if (!bound) return absent;
        int64_t at = *bound;
        if (percent)
            at =
                static_cast<int64_t>(std::nearbyint(static_cast<double>(at * rows) / static_cast<double>(all_percent)));
        return std::clamp<int64_t>(at < 0 ? rows + at : at, 0, rows);
    };
    return {place(from, 0), place(to, rows)};
}

std::vector<SplitPart> parse_split(const std::string& text, const std::string& origin) {
    std::vector<SplitPart> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find('+', begin), text.size());
        const std::string one = text.substr(begin, end - begin);
        if ((one.empty() && !text.empty()) || !read_part(one, parts.emplace_back()))
            throw Error("option.invalid-value", cat(origin, ": '", text, "' is no split"),
                        "Expected a name, a slice, or both, joined by +: train, train[:20%], [100:500], "
                        "train[-10%:]+test. Percent are whole numbers of up to 100.");
        begin = end + 1;
    }
    return parts;
}

}  // namespace unsloth::config
