// Labels of options, each a single token, by which a model chooses among them.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::serve {

struct OptionLabel {
    std::string name;
    std::vector<int32_t> ids;  ///< the tokens that say it, with and without a space in front
};

/// A label for each of `count` options: letters, or pairs of letters where there are more options than those. nullopt:
/// the tokenizer has not so many that are one token.
inline std::optional<std::vector<OptionLabel>> option_labels(const tokenizer::Tokenizer& tokenizer, std::size_t count) {
    constexpr int letters = 26;
    std::vector<OptionLabel> labels;
    std::set<int32_t> taken;
    const auto add = [&](const std::string& name) {
        std::set<int32_t> ids;
        for (const std::string& text : {name, " " + name})
            if (const auto encoded = tokenizer.encode(text, false); encoded.size() == 1) ids.insert(encoded[0]);
        if (const auto id = tokenizer.token_id(name)) ids.insert(*id);
        std::erase_if(ids, [&](int32_t id) { return !taken.insert(id).second; });
        if (!ids.empty()) labels.push_back({name, {ids.begin(), ids.end()}});
    };
    const auto letter = [](int i) { return static_cast<char>('A' + i); };
    for (int i = 0; i < letters && count <= letters; ++i) add(std::string(1, letter(i)));
    for (int i = 0; i < letters * letters && count > letters && labels.size() < count; ++i)
        add({letter(i / letters), letter(i % letters)});
    if (labels.size() < count) return std::nullopt;
    labels.resize(count);
    return labels;
}

}  // namespace unsloth::serve
