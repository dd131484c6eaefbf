#include <algorithm>
#include <map>
#include <set>

#include "grammar/nodes.h"
#include "unsloth/core/error.h"

namespace unsloth::grammar {
namespace {

constexpr std::size_t longest_name = 256, most_name_bytes = 20'000;

}  // namespace

/// Follows the prefixes of the names: a character that continues none of them leads to the node for all other keys.
Piece other_key(Builder& builder, const std::vector<std::string>& taken_names) {
    const CodePoints clean = normalised({{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, last_code_point}});
    std::set<std::u32string> names;
    std::size_t bytes = 0;
    for (const std::string& name : taken_names) {
        bytes += name.size();
        if (name.size() > longest_name || bytes > most_name_bytes)
            throw Refused(cat("the schema's keyword 'additionalProperties' is supported next to names of ",
                              longest_name, " bytes, and ", most_name_bytes, " together"));
        const std::vector<uint32_t> points = code_points_of(name);
        names.emplace(points.begin(), points.end());
    }
    const Piece all{builder.node(), builder.node()};
    const Piece quote = builder.literal("\"");
    builder.connect(all.from, quote.from);
    const int32_t other = builder.node();  // differs from all names
    builder.code_points(other, clean, other);
    builder.byte(other, '"', '"', all.to);
    std::map<std::u32string, int32_t> places = {{U"", quote.to}};  // beginnings of names
    for (const std::u32string& name : names)
        for (std::size_t length = 1; length <= name.size(); ++length) places.emplace(name.substr(0, length), -1);
    for (auto& [beginning, place] : places)
        if (place < 0) place = builder.node();
    for (const auto& [beginning, place] : places) {
        CodePoints rest;
        for (auto next = places.upper_bound(beginning); next != places.end(); ++next) {
            if (!next->first.starts_with(beginning)) break;
            if (next->first.size() != beginning.size() + 1) continue;
            const auto c = static_cast<uint32_t>(next->first.back());
            rest.emplace_back(c, c);
            const bool is_clean =
                std::ranges::any_of(clean, [&](const auto& r) { return r.first <= c && c <= r.second; });
            if (is_clean) builder.code_points(place, {{c, c}}, next->second);
        }
        const CodePoints taken = complement(clean);
        rest.insert(rest.end(), taken.begin(), taken.end());
        builder.code_points(place, complement(rest), other);
        if (!names.contains(beginning)) builder.byte(place, '"', '"', all.to);
    }
    return all;
}

}  // namespace unsloth::grammar
