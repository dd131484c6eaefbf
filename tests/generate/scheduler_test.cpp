// The scheduler without a model.
#include "generate/scheduler_support.h"

#include <array>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Scheduler, LosesNoPageOverTenThousandRandomRequests) {
    std::mt19937 random(1);
    constexpr int64_t pages = 40;
    Scheduler scheduler({.rows = 9, .pass_tokens = 24, .prefill_tokens = 10, .context = 60}, pages, page);
    ImaginedCache cache(pages);
    const Ids beginning = ids_from(random, 17, 5);
    int64_t added = 0;
    bool more = true;
    while (more || added < 10000) {
        for (uint32_t some = random() % 4; some > 0 && added < 10000; --some, ++added) {
            Ids prompt = ids_from(random, 1 + static_cast<int64_t>(random() % 30), 3);
            if (random() % 2 == 0) prompt.insert(prompt.begin(), beginning.begin(), beginning.end());
            scheduler.add({.prompt = prompt,
                           .max_new_tokens = 1 + static_cast<int64_t>(random() % 12),
                           .adapter = static_cast<int32_t>(random() % 3) - 1});
        }
        more = step(scheduler, cache);
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(scheduler.pool().free(), pages);
    EXPECT_GT(scheduler.preemptions(), 0) << "the cache is never short: this shows nothing";
}

/// A prompt of a few ids, in which images of `most` tokens at most stand for runs of one id.
Request prompt_with_images(std::mt19937& random, int32_t most) {
    spec::VisionSpec tower;
    tower.merge = 1;
    data::Sample prompt;
    for (uint32_t i = 1 + random() % 3; i > 0; --i) {
        const Ids text = ids_from(random, static_cast<int64_t>(random() % 9), 2);
        prompt.ids.insert(prompt.ids.end(), text.begin(), text.end());
        data::Image image{.first = static_cast<int32_t>(prompt.ids.size()),
                          .grid_h = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(most)),
                          .grid_w = 1};
        image.pixels = std::make_shared<const std::vector<uint8_t>>(1, static_cast<uint8_t>(random() % 2));
        prompt.ids.insert(prompt.ids.end(), static_cast<std::size_t>(image.grid_h), 7);
        prompt.images.push_back(image);
    }
    prompt.ids.push_back(1);
    Request request{.prompt = prompt.ids, .max_new_tokens = 1 + static_cast<int64_t>(random() % 6)};
    request.images = std::make_shared<const PromptImages>(prompt, tower);
    return request;
}

/// No chunk ends within an image, none has more features than tokens that a pass may have, and no key is another's.
TEST(Scheduler, TakesImagesInWhole) {
    std::mt19937 random(9);
    constexpr int64_t pages = 40, pass = 24, rows = 5;
    constexpr int32_t most = pass - rows + 1;
    Scheduler scheduler({.rows = rows, .pass_tokens = pass, .prefill_tokens = 3, .context = 100}, pages, page);
    ImaginedCache cache(pages);
    int64_t added = 0, shared = 0, begun_within = 0;
    for (bool more = true; more || added < 3000;) {
        for (uint32_t some = random() % 3; some > 0 && added < 3000; --some, ++added)
            scheduler.add(random() % 3 == 0 ? Request{.prompt = ids_from(random, 12, 2), .max_new_tokens = 5}
                                            : prompt_with_images(random, most));
        const std::vector<ScheduledChunk> parts = scheduler.next_pass();
        more = !parts.empty();
        int64_t tokens = 0, features = 0;
        for (const ScheduledChunk& part : parts) {
            const Sequence& s = *part.sequence;
            tokens += part.count;
            shared += s.shared;
            if (!s.request.images) continue;
            ASSERT_EQ(s.request.images->cut_by(s.cached + part.count), nullptr);
            begun_within += s.request.images->cut_by(s.cached) != nullptr;
            for (const PromptImages::Place& place : s.request.images->places)
                if (PromptImages::lies_in(place, s.cached, s.cached + part.count)) features += place.count;
        }
        ASSERT_LE(tokens, pass);
        ASSERT_LE(features, pass);
        cache.compute(parts);
        if (HasFatalFailure()) return;
        finish(scheduler, parts);
    }
    EXPECT_EQ(scheduler.pool().free(), pages);
    EXPECT_GT(shared, 0);
    EXPECT_GT(begun_within, 0) << "no prefix ended within an image: this shows nothing";
}

/// Prompts join and answers end, for their length and by surprise, while a pass with their next token is under way.
TEST(Scheduler, PassesAheadComputeTheSameAndLoseNoPage) {
    std::mt19937 random(4);
    constexpr int64_t pages = 40;
    Scheduler scheduler({.rows = 6, .pass_tokens = 24, .prefill_tokens = 10, .context = 60}, pages, page);
    ImaginedCache cache(pages);
    int64_t added = 0, passes_ahead = 0, ended_ahead = 0, joined_ahead = 0, last_tokens = 0;
    for (bool more = true; more || added < 2000;) {
        for (uint32_t some = random() % 4; some > 0 && added < 2000; --some, ++added)
            scheduler.add({.prompt = ids_from(random, 1 + static_cast<int64_t>(random() % 30), 3),
                           .max_new_tokens = 1 + static_cast<int64_t>(random() % 28)});
        std::vector<ScheduledChunk> parts = scheduler.next_pass();
        more = !parts.empty();
        while (!parts.empty()) {
            cache.compute(parts);
            if (HasFatalFailure()) return;
            std::vector<Sequence*> chosen = {nullptr};  // a prompt's row that is rated
            for (const ScheduledChunk& part : parts)
                if (part.chooses()) chosen.push_back(part.sequence);
            scheduler.computed(parts);
            parts = scheduler.schedule_async(chosen);
            int64_t tokens = 0;
            for (std::size_t i = 0; i < parts.size(); ++i) {
                const ScheduledChunk& part = parts[i];
                tokens += part.count;
                joined_ahead += part.ahead() ? 0 : 1;
                if (!part.ahead()) continue;
                ASSERT_TRUE(part.chooses() && part.decodes());
                ASSERT_EQ(chosen[static_cast<std::size_t>(part.from)], part.sequence);
                ASSERT_TRUE(i == 0 || parts[i - 1].ahead()) << "tokens that the device knows come first";
            }
            ASSERT_LE(tokens, 24);
            ASSERT_LE(scheduler.running(), 6);
            passes_ahead += parts.empty() ? 0 : 1;
            for (Sequence* s : chosen) {
                if (s == nullptr) continue;
                s->ids.push_back(static_cast<int32_t>(s->ids.size()));
                const bool full =
                    s->ids.size() == s->request.prompt.size() + static_cast<std::size_t>(s->request.max_new_tokens);
                if (!full && random() % 10 != 0) continue;
                const auto erased = std::erase_if(parts, [&](const ScheduledChunk& p) { return p.sequence == s; });
                ASSERT_TRUE(!full || erased == 0) << "its length was known";
                if (erased > 0) cache.spoil(*s);
                ended_ahead += static_cast<int64_t>(erased);
                last_tokens += full && !parts.empty() ? 1 : 0;
                scheduler.finish(*s);
            }
        }
    }
    EXPECT_EQ(scheduler.pool().free(), pages);
    EXPECT_GT(passes_ahead, 1000);
    EXPECT_GT(ended_ahead, 50);
    EXPECT_GT(joined_ahead, 1000);
    EXPECT_GT(last_tokens, 200);
}

TEST(Scheduler, ComputesACommonBeginningOnce) {
    ImaginedCache cache(64);
    Scheduler scheduler({.rows = 8, .pass_tokens = 64, .prefill_tokens = 64, .context = 40}, 64, page);
    Ids prompt(20);
    for (int32_t i = 0; i < 20; ++i) prompt[static_cast<std::size_t>(i)] = i;
    for (int i = 0; i < 6; ++i) scheduler.add({.prompt = prompt, .max_new_tokens = 2});
    while (step(scheduler, cache)) {
    }
    // 16 of 20 tokens lie in whole pages below the last token; of each sequence 4 more, and an answer's first token.
    EXPECT_EQ(cache.computed, 16 + 6 * (4 + 1));
    const int64_t before = cache.computed;
    scheduler.add({.prompt = prompt, .max_new_tokens = 1});
    while (step(scheduler, cache)) {
    }
    EXPECT_EQ(cache.computed - before, 4) << "pages that nobody holds are found again";
    for (const int32_t adapter : {0, 1, 0}) scheduler.add({.prompt = prompt, .max_new_tokens = 1, .adapter = adapter});
    while (step(scheduler, cache)) {
    }
    EXPECT_EQ(cache.computed - before, 4 + 20 + 20 + 4) << "each adapter's keys are its own";

    const auto answer = [&](uint64_t policy) {
        const int64_t done = cache.computed;
        scheduler.use_policy(policy);
        scheduler.add({.prompt = prompt, .max_new_tokens = 1, .adapter = 1});
        while (step(scheduler, cache)) {
        }
        return cache.computed - done;
    };
    EXPECT_EQ(answer(1), 20) << "and those of each version of the weights";
    EXPECT_EQ(answer(1), 4);
    scheduler.add({.prompt = prompt, .max_new_tokens = 3});
    step(scheduler, cache);
    EXPECT_THROW(scheduler.use_policy(2), CheckError) << "keys of a running sequence are of the old weights";
}

TEST(Scheduler, ALongPromptGoesInByPiecesBesideThoseThatDecode) {
    ImaginedCache cache(100);
    Scheduler scheduler({.rows = 4, .pass_tokens = 100, .prefill_tokens = 7, .context = 200}, 100, page);
    scheduler.add({.prompt = {1, 2, 3}, .max_new_tokens = 60});
    step(scheduler, cache);
    std::mt19937 random(2);
    scheduler.add({.prompt = ids_from(random, 150, 1000), .max_new_tokens = 1});
    int64_t passes = 0;
    for (bool beside = true; beside; ++passes) {
        const std::vector<ScheduledChunk> parts = scheduler.next_pass();
        beside = parts.size() == 2;
        if (beside) {
            EXPECT_TRUE(parts[0].decodes());
            EXPECT_LE(parts[1].count, 7);
        }
        cache.compute(parts);
        scheduler.computed(parts);
        for (const ScheduledChunk& part : parts)
            if (part.sequence->remaining() == 0) part.sequence->ids.push_back(0);
        if (passes > 0 && parts.size() == 2 && parts[1].sequence->remaining() == 1) break;
    }
    EXPECT_EQ(passes, (150 + 6) / 7 - 1);
}

TEST(Scheduler, ARuleSaysHowManyTokensGoInBesideWhichRows) {
    ImaginedCache cache(100);
    std::vector<std::array<int64_t, 3>> asked;
    const ChunkedPrefillPolicy rule = [&](int64_t rows, int64_t keys, int64_t cached) {
        asked.push_back({rows, keys, cached});
        return PrefillChunk{cached < 40 ? 20 : 6, cached < 40};
    };
    Scheduler scheduler({.rows = 4, .pass_tokens = 100, .context = 200, .prefill_policy = rule, .segments = 12}, 100,
                        page);
    scheduler.add({.prompt = {1, 2, 3}, .max_new_tokens = 60});
    step(scheduler, cache);
    EXPECT_TRUE(asked.empty()) << "nobody waits";
    std::mt19937 random(2);
    scheduler.add({.prompt = ids_from(random, 60, 1000), .max_new_tokens = 1});
    for (int64_t cached = 0; cached < 60;) {
        const std::vector<ScheduledChunk> parts = scheduler.next_pass();
        ASSERT_EQ(parts.size(), 2U);
        EXPECT_TRUE(parts[0].decodes() && !parts[0].as_decode_rows);
        EXPECT_EQ(asked.back(),
                  (std::array<int64_t, 3>{1, static_cast<int64_t>(parts[0].sequence->ids.size()), cached}));
        EXPECT_EQ(parts[1].as_decode_rows, cached < 40);
        EXPECT_EQ(parts[1].count, std::min<int64_t>(60 - cached, cached < 40 ? 11 : 6)) << "11 segments are left of 12";
        cached += parts[1].count;
        cache.compute(parts);
        scheduler.computed(parts);
        parts[0].sequence->ids.push_back(0);
    }
}

TEST(Scheduler, RefusesWhatTheCacheCannotHold) {
    EXPECT_THROW(Scheduler({.rows = 1, .pass_tokens = 1, .context = 41}, 10, page), Error);
    Scheduler scheduler({.rows = 1, .pass_tokens = 8, .context = 40}, 10, page);
    EXPECT_THROW(scheduler.add({.prompt = {1}, .max_new_tokens = 40}), Error);
    EXPECT_EQ(scheduler.add({.prompt = {1}, .max_new_tokens = 39}), 0);
    EXPECT_EQ(scheduler.add({.prompt = {1}, .max_new_tokens = 1}), 1);
}

}  // namespace
}  // namespace unsloth
