// A cache is imagined in which each page holds the ids whose keys were put there.
#pragma once

#include "unsloth/generate/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "unsloth/generate/prompt_images.h"

namespace unsloth {

using namespace generate;
using Ids = std::vector<int32_t>;

inline constexpr int64_t page = 4;

/// Carries passes out, and checks that every key that attention would read is the one of that token. With `states`
/// places, of a model that also keeps a state for each sequence, which says what tokens it has seen.
class ImaginedCache {
  public:
    explicit ImaginedCache(int64_t pages, int64_t states = 0)
        : tokens_(static_cast<std::size_t>(pages * page), -1), states_(static_cast<std::size_t>(states)) {}

    void compute(const std::vector<ScheduledChunk>& parts) {
        for (const ScheduledChunk& part : parts) resume(part);
        for (const ScheduledChunk& part : parts) {
            const Sequence& s = *part.sequence;
            for (int64_t t = s.cached; t < s.cached + part.count; ++t) at(s, t) = key(s, t);
            computed += part.count;
        }
        for (const ScheduledChunk& part : parts) advance(part);
        for (const ScheduledChunk& part : parts)
            if (part.keeps >= 0) state(part.keeps) = state(part.sequence->state);
        for (const ScheduledChunk& part : parts)
            for (int64_t t = 0; t < part.sequence->cached + part.count; ++t)
                ASSERT_EQ(at(*part.sequence, t), key(*part.sequence, t))
                    << "token " << t << " of sequence " << part.sequence->number;
    }
    int64_t computed = 0, resumed = 0;
    /// A pass that was issued ahead computes a token of a sequence that has ended meanwhile.
    void spoil(const Sequence& s) { at(s, s.cached) = -7; }

  private:
    /// An adapter's keys of an id are its own, and those of a version of the weights, and of the images up to there.
    static int32_t key(const Sequence& s, int64_t t) {
        uint32_t seen = 0;
        if (s.request.images)
            for (const PromptImages::Place& place : s.request.images->places)
                if (place.first <= t) seen = seen * 31 + static_cast<uint32_t>(place.content[0]) % 997 * 1000000;
        return static_cast<int32_t>(seen) + s.ids[static_cast<std::size_t>(t)] + 10000 * (s.request.adapter + 1) +
               100000 * static_cast<int32_t>(s.policy);
    }
    uint64_t& state(int32_t place) { return states_.at(static_cast<std::size_t>(place)); }
    static uint64_t after(uint64_t state, int32_t key) { return state * 1000003 + static_cast<uint32_t>(key) + 1; }
    void resume(const ScheduledChunk& part) {
        const Sequence& s = *part.sequence;
        if (s.state < 0) return;
        EXPECT_TRUE(part.resumes < 0 || s.cached > 0);
        if (part.resumes >= 0)
            state(s.state) = state(part.resumes), ++resumed;
        else if (s.cached == 0)
            state(s.state) = 0;
    }
    void advance(const ScheduledChunk& part) {
        const Sequence& s = *part.sequence;
        if (s.state < 0) return;
        uint64_t expected = 0;
        for (int64_t t = 0; t < s.cached; ++t) expected = after(expected, key(s, t));
        ASSERT_EQ(state(s.state), expected) << "what sequence " << s.number << " has seen before token " << s.cached;
        for (int64_t t = s.cached; t < s.cached + part.count; ++t) state(s.state) = after(state(s.state), key(s, t));
    }
    int32_t& at(const Sequence& s, int64_t t) {
        const auto place = s.pages.at(static_cast<std::size_t>(t / page)) * page + t % page;
        return tokens_.at(static_cast<std::size_t>(place));
    }
    Ids tokens_;
    std::vector<uint64_t> states_;
};

inline Ids ids_from(std::mt19937& random, int64_t count, int32_t different) {
    Ids ids;
    for (int64_t i = 0; i < count; ++i)
        ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(different)));
    return ids;
}

/// After a pass: each answer's next token is its length; answers end by their max_new_tokens.
inline void finish(Scheduler& scheduler, const std::vector<ScheduledChunk>& parts) {
    std::vector<Sequence*> choosing;
    for (const ScheduledChunk& part : parts)
        if (part.chooses()) choosing.push_back(part.sequence);
    scheduler.computed(parts);
    for (Sequence* s : choosing) {
        s->ids.push_back(static_cast<int32_t>(s->ids.size()));
        if (s->ids.size() == s->request.prompt.size() + static_cast<std::size_t>(s->request.max_new_tokens))
            scheduler.finish(*s);
    }
}

inline bool step(Scheduler& scheduler, ImaginedCache& cache) {
    const std::vector<ScheduledChunk> parts = scheduler.next_pass();
    cache.compute(parts);
    finish(scheduler, parts);
    return !parts.empty();
}

}  // namespace unsloth
