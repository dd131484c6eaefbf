#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {
namespace {

bool ends_with_word(std::string_view text) {
    return !text.empty() && unicode::is_word(unicode::decode(text, unicode::previous(text, text.size())).code_point);
}

bool starts_with_word(std::string_view text) {
    return !text.empty() && unicode::is_word(unicode::decode(text, 0).code_point);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized) : nodes_(1) {
    for (const AddedToken& token : tokens) {
        if (token.normalized != normalized || token.pattern().empty()) continue;
        starts_[static_cast<uint8_t>(token.pattern()[0])] = true;
        int32_t node = 0;
        for (const char c : token.pattern()) {
            const auto [child, created] = nodes_[node].children.try_emplace(c, static_cast<int32_t>(nodes_.size()));
            node = child->second;
            if (created) nodes_.emplace_back();
        }
        const AddedToken*& known =
            nodes_[node].token;  // of equal patterns the first counts, and special ones before others
        if (!known || (token.special && !known->special)) known = &token;
    }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
    const AddedToken* found = nullptr;
    for (int32_t node = 0; at < text.size(); ++at) {
        const auto& children = nodes_[node].children;
        const auto child = children.find(text[at]);
        if (child == children.end()) break;
        node = child->second;
        if (nodes_[node].token) found = nodes_[node].token;
    }
    return found;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Stretch>& out) const {
    out.clear();
    const auto add = [&](std::size_t begin, std::size_t end, int32_t id) {
        if (begin < end) out.push_back({begin, end, id});
    };
    std::size_t done = 0;
    for (std::size_t at = 0; !empty() && at < text.size();) {
        const AddedToken* token = starts_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : nullptr;
        if (!token) {
            ++at;
            continue;
        }
        std::size_t begin = at, end = at + token->pattern().size();
        at = end;
        if (token->single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
            continue;
        }
        // White space goes to the first token that asks for it.
        if (token->lstrip) {
            const auto front = unicode::stripped(text.substr(0, begin), false, true, unicode::is_white_space);
            begin = std::max(front.size(), done);
        }
        if (token->rstrip)
            end = text.size() - unicode::stripped(text.substr(end), true, false, unicode::is_white_space).size();
        add(done, begin, -1);
        add(begin, end, token->id);
        done = end;
    }
    add(done, text.size(), -1);
}

}  // namespace unsloth::tokenizer
