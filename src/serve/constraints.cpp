#include "serve/constraints.h"

#include <algorithm>

#include "unsloth/openai/harmony.h"
#include "unsloth/openai/token_text.h"

namespace unsloth::serve {
namespace {

constexpr std::size_t most_grammars = 32;

class GrammarConstraint final : public generate::TokenConstraint {
  public:
    GrammarConstraint(std::shared_ptr<grammar::MaskCache> cache, std::vector<int32_t> stop_ids)
        : matcher_(std::move(cache)), stop_ids_(std::move(stop_ids)) {}

    std::span<const uint32_t> allowed() override {
        const std::span<const uint32_t> next = matcher_.allowed();
        mask_.assign(next.begin(), next.end());
        for (const int32_t id : stop_ids_) {
            const auto word = static_cast<std::size_t>(id) / 32;
            if (id < 0 || word >= mask_.size()) continue;
            const uint32_t bit = 1U << (static_cast<uint32_t>(id) % 32);
            mask_[word] = matcher_.may_end() ? mask_[word] | bit : mask_[word] & ~bit;
        }
        return mask_;
    }
    void advance(int32_t id) override { matcher_.advance(id); }

  private:
    grammar::Matcher matcher_;
    std::vector<int32_t> stop_ids_;
    std::vector<uint32_t> mask_;
};

}  // namespace

/// Patterns name harmony's tokens by bytes that no text has, and no other token may bring these.
void Constraints::add_framing(std::vector<std::string>& bytes) const {
    for (std::string& text : bytes)
        if (std::ranges::any_of(text, [](char c) {
                return static_cast<unsigned char>(c) >= static_cast<unsigned char>(openai::first_framing_byte);
            }))
            text.clear();
    for (const openai::FramingToken& token : openai::framing_tokens)
        if (const auto id = tokenizer_.added_token_id(token.text); id && *id < vocab_size_)
            bytes[static_cast<std::size_t>(*id)] = token.byte;
}

std::shared_ptr<const grammar::Vocabulary> Constraints::vocabulary() {
    const std::lock_guard lock(vocabulary_mutex_);
    if (vocabulary_) return vocabulary_;
    std::vector<std::string> bytes(static_cast<std::size_t>(vocab_size_));
    const int64_t known = std::min<int64_t>(vocab_size_, tokenizer_.vocab_size());
    for (int32_t id = 0; id < known; ++id)
        if (!tokenizer_.is_special(id))
            bytes[static_cast<std::size_t>(id)] = openai::text_of_token(tokenizer_, id).bytes;
    add_framing(bytes);
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(std::move(bytes));
    return vocabulary_;
}

std::shared_ptr<grammar::MaskCache> Constraints::compile(const grammar::Pattern& pattern) {
    const std::string key = pattern.key();
    const auto find = [&]() -> std::shared_ptr<grammar::MaskCache> {
        const auto known = std::ranges::find(latest_, key, [](const auto& entry) { return entry.first; });
        if (known == latest_.end()) return nullptr;
        auto entry = std::move(*known);
        latest_.erase(known);
        latest_.push_front(std::move(entry));
        return latest_.front().second;
    };
    {
        const std::lock_guard lock(mutex_);
        if (auto known = find()) return known;
    }
    auto made = std::make_shared<grammar::MaskCache>(std::make_shared<const grammar::Grammar>(pattern), vocabulary());
    const std::lock_guard lock(mutex_);
    if (auto known = find()) return known;  // another thread was faster
    latest_.emplace_front(key, made);
    if (latest_.size() > most_grammars) latest_.pop_back();
    return made;
}

std::shared_ptr<generate::TokenConstraint> Constraints::begin(std::shared_ptr<grammar::MaskCache> cache,
                                                              std::vector<int32_t> stop_ids) {
    return std::make_shared<GrammarConstraint>(std::move(cache), std::move(stop_ids));
}

}  // namespace unsloth::serve
