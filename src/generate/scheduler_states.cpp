// When a snapshot is made of what gated delta nets keep of a sequence, and who waits for it.
#include <algorithm>

#include "unsloth/generate/scheduler.h"

namespace unsloth::generate {
namespace {

/// Tokens that a snapshot must save before one is made that no known request needs.
constexpr int64_t worth_keeping = 256;

/// Tokens that both begin with, by keys of one making.
int64_t common_tokens(const Sequence& a, const Sequence& b) {
    if (a.own_beginning() != b.own_beginning()) return 0;
    return std::ranges::mismatch(a.ids, b.ids).in1 - a.ids.begin();
}

}  // namespace

/// Where the prompt pauses next: after a page that others share, before one that they do not. Its length: nowhere.
int64_t Scheduler::next_pause(const Sequence& s) const {
    const auto length = static_cast<int64_t>(s.ids.size());
    if (!limits_.shares_prefixes || !states_.keeps_snapshots()) return length;
    int64_t pause = length;
    const auto consider = [&](int64_t tokens) {
        const int64_t end = std::min(tokens, length - 1) / pool_.page_tokens() * pool_.page_tokens();
        if (end > s.cached) pause = std::min(pause, end);
    };
    consider(s.branch);
    if (limits_.keeps_prompts && length - s.cached > worth_keeping) consider(length);
    for (std::size_t i = 0; i < std::min(waiting_.size(), looked_at); ++i) {
        const Sequence& other = *waiting_[i];
        if (!other.request.prompt_logprobs)
            consider(std::min(common_tokens(s, other), static_cast<int64_t>(other.ids.size()) - 1));
    }
    return pause;
}

/// `count` tokens, or fewer, so that the chunk ends where a snapshot is made, for which there is a place.
int64_t Scheduler::until_pause(Sequence& s, int64_t count) {
    const auto length = static_cast<int64_t>(s.ids.size());
    if (s.pause <= s.cached) s.pause = next_pause(s);
    if (s.pause == length || s.cached + count < s.pause) return count;
    const auto place = states_.allocate();
    if (!place) {
        s.pause = length;
        return count;
    }
    s.keeps = *place;
    return s.pause - s.cached;
}

/// Whether a running sequence is about to have a snapshot that this one can go on from.
bool Scheduler::waits_for_snapshot(const Sequence& s) const {
    return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
        return other->pause > std::max(other->cached, s.cached) &&
               other->pause < static_cast<int64_t>(std::min(other->ids.size(), s.ids.size())) &&
               common_tokens(*other, s) >= other->pause;
    });
}

}  // namespace unsloth::generate
