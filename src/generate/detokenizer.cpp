#include "unsloth/generate/detokenizer.h"

#include <algorithm>
#include <span>

namespace unsloth::generate {
namespace {

/// What the tokenizer makes of a character that is not complete.
constexpr std::string_view incomplete = "\xEF\xBF\xBD";

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(tokenizer::Tokenizer tokenizer, std::vector<std::string> stops)
    : tokenizer_(std::move(tokenizer)), stops_(std::move(stops)) {
    for (const std::string& stop : stops_) longest_stop_ = std::max(longest_stop_, stop.size());
}

std::string IncrementalDetokenizer::decode(std::size_t first, std::size_t last) const {
    return tokenizer_.decode(std::span(ids_).subspan(first, last - first), /*skip_special=*/true);
}

/// A text may begin with a space that decoding drops at the front, and a character may take several tokens: new tokens
/// are decoded after the last ones that made a text, and what these make alone is taken off.
bool IncrementalDetokenizer::add(int32_t id) {
    ids_.push_back(id);
    const std::string before = decode(window_, read_), with = decode(window_, ids_.size());
    if (with.ends_with(incomplete) || with.size() <= before.size()) return true;
    const std::size_t searched = text_.size();
    text_ += with.substr(before.size());
    window_ = read_;
    read_ = ids_.size();
    if (cut_at_stop(searched)) return false;
    find_stable();
    return true;
}

void IncrementalDetokenizer::finish() {
    if (ended_) return;
    const std::size_t searched = text_.size();
    const std::string before = decode(window_, read_), with = decode(window_, ids_.size());
    if (with.size() > before.size()) text_ += with.substr(before.size());
    read_ = ids_.size();
    if (!cut_at_stop(searched)) stable_ = text_.size();
}

/// Looks for a stop text that ends after `from`.
bool IncrementalDetokenizer::cut_at_stop(std::size_t from) {
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_)
        first = std::min(first, text_.find(stop, from >= stop.size() ? from - stop.size() + 1 : 0));
    if (first == std::string::npos) return false;
    text_.resize(first);
    stable_ = first;
    ended_ = true;
    return true;
}

/// What is no beginning of a stop text stays.
void IncrementalDetokenizer::find_stable() {
    std::size_t open = 0;  // bytes at the end with which a stop text begins
    for (std::size_t bytes = std::min(longest_stop_, text_.size()); bytes > 0 && open == 0; --bytes)
        for (const std::string& stop : stops_)
            if (bytes < stop.size() && text_.compare(text_.size() - bytes, bytes, stop, 0, bytes) == 0) open = bytes;
    stable_ = text_.size() - open;
}

}  // namespace unsloth::generate
