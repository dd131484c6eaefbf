// Tokens that are found in a text as they are, before anything is split.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::tokenizer {

struct AddedToken {
    int32_t id = 0;
    std::string content;             ///< raw form
    std::string normalized_content;  ///< what is searched and decoded where `normalized` holds
    bool single_word = false;        ///< only where no word character touches it
    bool lstrip = false;             ///< takes the white space on its left
    bool rstrip = false;             ///< takes the white space on its right
    bool normalized = false;         ///< searched in the normalised text
    bool special = false;            ///< omitted when decoding without special tokens

    const std::string& pattern() const { return normalized ? normalized_content : content; }
};

/// Finds added tokens in a text: the leftmost, and of those the longest. Immutable; safe from any thread.
class AddedTokenFinder {
  public:
    /// Only tokens whose `normalized` equals the argument take part. The tokens must outlive the finder.
    AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized);
    bool empty() const { return nodes_.size() == 1; }

    /// A stretch of text that is a token, or one that is not (id -1). Never empty.
    struct Stretch {
        std::size_t begin, end;
        int32_t id;
    };
    void split(std::string_view text, std::vector<Stretch>& out) const;

  private:
    struct Node {
        std::map<char, int32_t> children;
        const AddedToken* token = nullptr;
    };
    const AddedToken* longest_at(std::string_view text, std::size_t at) const;
    std::vector<Node> nodes_;
    std::array<bool, 256> starts_{};
};

}  // namespace unsloth::tokenizer
