#include "unsloth/generate/scheduler.h"

#include <algorithm>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/generate/prompt_images.h"

namespace unsloth::generate {
namespace {

int64_t pages_for(int64_t tokens, int64_t page_tokens) {
    return (tokens + page_tokens - 1) / page_tokens;
}

/// Sorts chunks: decoding ones, then prompts with cached tokens, then new prompts.
void sort_parts(std::vector<ScheduledChunk>& parts) {
    const auto others =
        std::stable_partition(parts.begin(), parts.end(), [](const ScheduledChunk& p) { return p.decodes(); });
    const auto rest =
        std::stable_partition(others, parts.end(), [](const ScheduledChunk& p) { return p.as_decode_rows; });
    std::stable_partition(rest, parts.end(), [](const ScheduledChunk& p) { return p.sequence->cached > 0; });
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, int64_t pages, int64_t page_tokens)
    : limits_(limits),
      pool_(pages, page_tokens),
      slots_(limits.image_slots),
      states_(limits.keeps_states ? limits.rows : 0, limits.snapshots) {
    UNSLOTH_CHECK(limits.rows > 0 && limits.pass_tokens >= limits.rows && limits.prefill_tokens > 0, "a pass of ",
                  limits.pass_tokens, " tokens in ", limits.rows, " rows");
    if (pages_for(limits.context, page_tokens) > pages)
        throw Error("memory.small-cache",
                    cat("a cache of ", pages * page_tokens, " tokens holds no sequence of ", limits.context),
                    "Raise --kv_cache_memory, or lower --max_model_len or --max_new_tokens.");
}

int64_t Scheduler::add(Request request) {
    UNSLOTH_CHECK(!request.prompt.empty() && request.max_new_tokens > 0, "a request without prompt or answer");
    const int64_t room = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    if (room > limits_.context)
        throw Error("model.too-many-positions",
                    cat("prompt and answer take ", room, " tokens, the longest sequence has ", limits_.context),
                    "Raise --max_model_len, or lower --max_new_tokens.");
    UNSLOTH_CHECK(static_cast<BlockAllocator::PrefixHash>(request.adapter + 1) < Sequence::most_beginnings, "adapter ",
                  request.adapter);
    if (const int64_t image = request.images ? request.images->longest_image() : 0; image > longest_image())
        throw Error("image.too-large",
                    cat("an image takes ", image, " tokens, and passes have room for ", longest_image(), " of one"),
                    "Raise --max_num_batched_tokens, or make the image smaller.");
    if (const auto images = request.images ? std::ssize(request.images->images) : 0; images > most_images())
        throw Error("image.count",
                    cat("the prompt has ", images, " images, and there is room for ", most_images(), " at a time"),
                    "Ask about fewer at a time.");
    auto sequence = std::make_unique<Sequence>();
    sequence->number = added_++;
    sequence->ids = request.prompt;
    sequence->request = std::move(request);
    waiting_.push_back(std::move(sequence));
    return added_ - 1;
}

void Scheduler::use_policy(uint64_t version) {
    if (version == policy_) return;
    UNSLOTH_CHECK(running_.empty(), "the weights changed under ", running_.size(), " sequences");
    policy_ = version;
}

/// Allocates pages for `tokens` tokens after the cached ones; false, with the pages so far, when none is left.
bool Scheduler::make_room(Sequence& s, int64_t tokens) {
    const auto wanted = static_cast<std::size_t>(pages_for(s.cached + tokens, pool_.page_tokens()));
    while (s.pages.size() < wanted) {
        const auto page = pool_.allocate();
        if (!page) return false;
        s.pages.push_back(*page);
    }
    return true;
}

void Scheduler::release(Sequence& s) {
    // From the end, so that beginnings, which others may share, are taken last.
    for (auto page = s.pages.rbegin(); page != s.pages.rend(); ++page) pool_.unref(*page);
    s.pages.clear();
    s.texts.clear();
    s.cached = s.pause = s.branch = 0;
    if (s.state >= 0) states_.give_back(std::exchange(s.state, -1));
    if (s.resumes >= 0) states_.release(std::exchange(s.resumes, -1));
    if (s.keeps >= 0) states_.release(std::exchange(s.keeps, -1));
    if (s.slot >= 0) slots_.release(std::exchange(s.slot, -1));
}

/// False: its images find no slots next to those of others.
bool Scheduler::hold_images(Sequence& s) {
    if (limits_.image_slots == 0 || !s.request.images) return true;
    const BlockAllocator::PrefixHash made_by = s.beginning();
    ImageSlots::Key key = {static_cast<int32_t>(made_by), static_cast<int32_t>(made_by >> 32U)};
    for (const PromptImages::Place& place : s.request.images->places)
        key.insert(key.end(), place.content.begin(), place.content.end());
    const auto slot = slots_.acquire(key, std::ssize(s.request.images->images));
    if (slot) s.slot = *slot;
    return slot.has_value();
}

void Scheduler::preempt_last() {
    release(*running_.back());
    waiting_.push_front(std::move(running_.back()));
    running_.pop_back();
    ++preemptions_;
}

void Scheduler::add_decoding(std::vector<ScheduledChunk>& parts) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
        Sequence& s = *running_[i];
        if (s.remaining() != 1) continue;
        // The last to come make room for the first.
        while (i < running_.size() && !make_room(s, 1)) preempt_last();
        if (i < running_.size()) parts.push_back({&s, 1});
    }
}

/// The images of a pass, by their pixels, and the room for their features: as many as its tokens.
struct Scheduler::Seen {
    std::vector<const void*> pixels;
    int64_t room = 0;
    bool has(const data::Image& image) const { return std::ranges::find(pixels, image.pixels.get()) != pixels.end(); }
};

/// Adds up to `tokens` prompt tokens; with a policy, the number that it gives for the first prompt to come.
void Scheduler::add_prompts(std::vector<ScheduledChunk>& parts, int64_t tokens, const ChunkedPrefillPolicy& policy) {
    bool asks = static_cast<bool>(policy), as_decode_rows = false;
    const auto rows = static_cast<int64_t>(parts.size());
    int64_t keys = 0, left = limits_.pass_tokens;
    Seen seen{{}, limits_.pass_tokens};
    for (const ScheduledChunk& part : parts) keys += part.sequence->cached + 1, left -= part.count;
    const auto add = [&](Sequence& s) {
        if (std::exchange(asks, false)) {
            const PrefillChunk most = policy(rows, keys, s.cached);
            as_decode_rows = most.as_decode_rows && limits_.segments > rows && !limits_.keeps_states;
            tokens = std::min({tokens, most.tokens, as_decode_rows ? limits_.segments - rows : tokens});
        }
        const int64_t room = (static_cast<int64_t>(s.pages.size()) + pool_.free()) * pool_.page_tokens() - s.cached;
        const int64_t fits = std::min({s.remaining(), tokens, room});
        if (fits <= 0) return;
        int64_t count = with_whole_images(s, fits, std::min(left, room), seen);
        if (count <= 0) return;
        if (limits_.keeps_states) count = until_pause(s, count);
        make_room(s, count);
        parts.push_back({.sequence = &s, .count = count, .as_decode_rows = as_decode_rows && count <= fits});
        tokens -= count;
        left -= count;
    };
    for (const auto& s : running_)
        if (s->remaining() > 1) add(*s);
    int64_t expected = 0;  // rows of sequences that soon go on from a snapshot: it may not stay for long
    for (std::size_t i = 0; i < std::min(waiting_.size(), looked_at) && tokens > 0;) {
        if (static_cast<int64_t>(running_.size()) + expected >= limits_.rows) break;
        if (const Admitted admitted = admit(*waiting_[i]); admitted != Admitted::yes) {
            if (limits_.keeps_states && admitted == Admitted::later) ++expected;
            ++i;
            continue;
        }
        if (limits_.keeps_states) waiting_[i]->state = states_.take();
        running_.push_back(std::move(waiting_[i]));
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
        add(*running_.back());
    }
}

/// What the keys of a page depend on, besides those before it: its ids, and which images some of them stand for.
std::vector<int32_t> Scheduler::page_contents(const Sequence& s, int64_t page) const {
    const int64_t first = page * pool_.page_tokens(), end = first + pool_.page_tokens();
    std::vector<int32_t> contents(s.ids.begin() + first, s.ids.begin() + end);
    if (!s.request.images) return contents;
    const bool crosses = limits_.image_slots > 0;  // tokens before the images see them too
    for (const PromptImages::Place& place : s.request.images->places) {
        if (crosses ? page > 0 : !PromptImages::lies_in(place, first, end)) continue;
        contents.push_back(place.first - static_cast<int32_t>(first));
        contents.insert(contents.end(), place.content.begin(), place.content.end());
    }
    return contents;
}

/// `count` tokens, or fewer, so that no image is cut; where one is the first thing to come, more, up to `most`. Notes
/// the images among them: also of one whose beginning is cached all features are made.
int64_t Scheduler::with_whole_images(const Sequence& s, int64_t count, int64_t most, Seen& seen) const {
    if (!s.request.images || limits_.image_slots > 0) return count;
    const PromptImages& images = *s.request.images;
    int64_t end = s.cached + count;
    if (const PromptImages::Place* const cut = images.cut_by(end)) {
        end = cut->first > s.cached ? cut->first : cut->end();
        if (end - s.cached > most) return 0;
    }
    for (std::size_t i = 0; i < images.places.size(); ++i) {
        const PromptImages::Place& place = images.places[i];
        if (!PromptImages::lies_in(place, s.cached, end) || seen.has(images.images[i])) continue;
        if (place.count > seen.room) return std::max<int64_t>(place.first - s.cached, 0);
        seen.room -= place.count;
        seen.pixels.push_back(images.images[i].pixels.get());
    }
    return end - s.cached;
}

/// Holds the pages that have the sequence's beginning already; at least one token is left to compute. With states, as
/// far as there is a snapshot.
void Scheduler::share_prefix(Sequence& s) {
    const int64_t most = (static_cast<int64_t>(s.ids.size()) - 1) / pool_.page_tokens();
    std::vector<BlockAllocator::Found> found;
    std::size_t usable = 0;
    for (int64_t page = 0; page < most; ++page) {
        const auto next = pool_.find(found.empty() ? s.beginning() : found.back().text, page_contents(s, page));
        if (!next) break;
        found.push_back(*next);
        if (!limits_.keeps_states || states_.has(next->text)) usable = found.size();
    }
    s.branch = std::ssize(found) * pool_.page_tokens();
    for (std::size_t page = 0; page < usable; ++page) {
        pool_.ref(found[page].page);
        s.pages.push_back(found[page].page);
        s.texts.push_back(found[page].text);
    }
    if (limits_.keeps_states && usable > 0) s.resumes = states_.hold(s.texts.back());
    s.cached = static_cast<int64_t>(s.pages.size()) * pool_.page_tokens();
    if (s.ids.size() == s.request.prompt.size()) s.shared = s.cached;
}

/// Whether a running sequence is about to complete the page that this one needs next: it waits and shares it.
bool Scheduler::is_being_computed(const Sequence& s) const {
    const auto page = static_cast<int64_t>(s.texts.size());
    if ((page + 1) * pool_.page_tokens() > static_cast<int64_t>(s.ids.size()) - 1) return false;
    const auto needed = page_contents(s, page);
    return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
        const auto end = static_cast<std::size_t>((page + 1) * pool_.page_tokens());
        if (other->texts.size() != s.texts.size() || other->ids.size() < end) return false;
        if (other->before() != s.before()) return false;
        return page_contents(*other, page) == needed;
    });
}

Scheduler::Admitted Scheduler::admit(Sequence& s) {
    s.policy = policy_;
    if (!hold_images(s)) return Admitted::no_room;
    if (limits_.shares_prefixes && !s.request.prompt_logprobs) {  // which needs every token's logits
        share_prefix(s);
        if (limits_.keeps_states ? waits_for_snapshot(s) : is_being_computed(s)) {
            release(s);
            return Admitted::later;
        }
    }
    const int64_t needed =
        pages_for(static_cast<int64_t>(s.ids.size()) + 1, pool_.page_tokens()) - static_cast<int64_t>(s.pages.size());
    if (needed <= pool_.free()) return Admitted::yes;
    release(s);
    return Admitted::no_room;
}

/// As many tokens of prompts as the rows that decode can wait for.
void Scheduler::take_in_prompts(std::vector<ScheduledChunk>& parts) {
    const int64_t left = limits_.pass_tokens - static_cast<int64_t>(parts.size());
    if (parts.empty() || limits_.prefill_policy)
        add_prompts(parts, left, parts.empty() ? ChunkedPrefillPolicy{} : limits_.prefill_policy);
    else
        add_prompts(parts, std::min(left, limits_.prefill_tokens));
}

/// Sorts them, and says which copies of states go with them, and which have images whose keys were not computed yet.
void Scheduler::finish_parts(std::vector<ScheduledChunk>& parts) {
    sort_parts(parts);
    std::vector<int64_t> seen;
    for (ScheduledChunk& part : parts) {
        part.keeps = part.sequence->keeps;
        part.resumes = std::exchange(part.sequence->resumes, -1);
        if (part.resumes >= 0) states_.release(part.resumes);  // it is read before what later passes write
        const int64_t slot = part.sequence->slot;
        if (slot < 0 || slots_.has_keys(slot) || std::ranges::find(seen, slot) != seen.end()) continue;
        part.sees = true;
        seen.push_back(slot);
    }
}

std::vector<ScheduledChunk> Scheduler::next_pass() {
    std::vector<ScheduledChunk> parts;
    add_decoding(parts);
    take_in_prompts(parts);
    while (parts.empty() && running_.size() > 1) {  // prompts hold all pages, and none is complete
        preempt_last();
        add_prompts(parts, limits_.pass_tokens);
    }
    UNSLOTH_CHECK(!parts.empty() || (running_.empty() && waiting_.empty()), "no page is left for ", running_.size(),
                  " running and ", waiting_.size(), " waiting sequences");
    finish_parts(parts);
    return parts;
}

std::vector<ScheduledChunk> Scheduler::schedule_async(std::span<Sequence* const> chosen) {
    std::vector<ScheduledChunk> parts;
    int64_t pages = 0;
    const auto add = [&](Sequence* s, int64_t from) {
        pages += pages_for(s->cached + 1, pool_.page_tokens()) - static_cast<int64_t>(s->pages.size());
        parts.push_back({.sequence = s, .count = 1, .from = from});
    };
    for (std::size_t row = 0; row < chosen.size(); ++row) {
        Sequence* const s = chosen[row];
        if (s == nullptr) continue;
        const auto answered = static_cast<int64_t>(s->ids.size() - s->request.prompt.size());
        if (answered + 1 < s->request.max_new_tokens) add(s, static_cast<int64_t>(row));
    }
    for (const auto& s : running_)
        if (s->remaining() == 1) add(s.get(), -1);
    if (pages > pool_.free()) return {};
    for (const ScheduledChunk& part : parts) make_room(*part.sequence, 1);
    take_in_prompts(parts);
    finish_parts(parts);
    return parts;
}

void Scheduler::computed(const std::vector<ScheduledChunk>& parts) {
    for (const ScheduledChunk& part : parts) {
        Sequence& s = *part.sequence;
        s.cached += part.count;
        if (part.sees) slots_.note_keys(s.slot);
        if (!limits_.shares_prefixes) continue;
        for (auto page = static_cast<int64_t>(s.texts.size()); (page + 1) * pool_.page_tokens() <= s.cached; ++page)
            s.texts.push_back(
                pool_.commit(s.pages[static_cast<std::size_t>(page)], s.before(), page_contents(s, page)));
        if (s.keeps >= 0) states_.commit(std::exchange(s.keeps, -1), s.texts.back());
    }
}

void Scheduler::finish(const Sequence& sequence) {
    const auto at = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == &sequence; });
    UNSLOTH_CHECK(at != running_.end(), "sequence ", sequence.number, " is not running");
    release(**at);
    running_.erase(at);
}

const Sequence* Scheduler::drop(int64_t number) {
    const auto is_it = [&](const auto& s) { return s->number == number; };
    std::erase_if(waiting_, is_it);
    const auto at = std::find_if(running_.begin(), running_.end(), is_it);
    if (at == running_.end()) return nullptr;
    const Sequence* const dropped = at->get();
    finish(*dropped);
    return dropped;
}

}  // namespace unsloth::generate
