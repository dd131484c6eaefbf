// The scheduler of models that keep states for sequences.
#include "generate/scheduler_support.h"

namespace unsloth {
namespace {

/// Groups, prompts with a common beginning, and others, in a cache that is too small: states are those of the tokens
/// before, whatever snapshots they begin from.
TEST(SchedulerStates, StatesAreThoseOfTheTokensBeforeThem) {
    for (const int64_t snapshots : {0, 1, 3, 12}) {
        std::mt19937 random(5);
        constexpr int64_t pages = 40, rows = 9;
        Scheduler scheduler({.rows = rows,
                             .pass_tokens = 24,
                             .prefill_tokens = 10,
                             .context = 60,
                             .keeps_states = true,
                             .snapshots = snapshots},
                            pages, page);
        ImaginedCache cache(pages, rows + snapshots);
        const Ids beginning = ids_from(random, 17, 5);
        int64_t added = 0;
        for (bool more = true; more || added < 3000;) {
            for (uint32_t some = random() % 3; some > 0 && added < 3000; --some) {
                Ids prompt = ids_from(random, 1 + static_cast<int64_t>(random() % 30), 3);
                if (random() % 2 == 0) prompt.insert(prompt.begin(), beginning.begin(), beginning.end());
                const auto adapter = static_cast<int32_t>(random() % 2) - 1;
                for (uint32_t group = 1 + random() % 5; group > 0; --group, ++added)
                    scheduler.add({.prompt = prompt,
                                   .max_new_tokens = 1 + static_cast<int64_t>(random() % 12),
                                   .adapter = adapter});
            }
            more = step(scheduler, cache);
            if (HasFatalFailure()) return;
        }
        EXPECT_EQ(scheduler.pool().free(), pages);
        EXPECT_GT(scheduler.preemptions(), 0);
        EXPECT_EQ(cache.resumed > 300, snapshots > 0) << cache.resumed << " began from one of " << snapshots;
    }
}

/// A group's prompt is computed once, by the first of it, which pauses where the others go on.
TEST(SchedulerStates, AGroupGoesOnFromOneSnapshot) {
    ImaginedCache cache(64, 8 + 2);
    Scheduler scheduler(
        {.rows = 8, .pass_tokens = 64, .prefill_tokens = 64, .context = 40, .keeps_states = true, .snapshots = 2}, 64,
        page);
    Ids prompt(20), other(20);
    for (int32_t i = 0; i < 20; ++i) prompt[static_cast<std::size_t>(i)] = i;
    for (int i = 0; i < 6; ++i) scheduler.add({.prompt = prompt, .max_new_tokens = 2});
    while (step(scheduler, cache)) {
    }
    EXPECT_EQ(cache.computed, 16 + 6 * (4 + 1));
    EXPECT_EQ(cache.resumed, 5);
    const auto computed = [&](const Ids& ids) {
        const int64_t before = cache.computed;
        scheduler.add({.prompt = ids, .max_new_tokens = 1});
        while (step(scheduler, cache)) {
        }
        return cache.computed - before;
    };
    EXPECT_EQ(computed(prompt), 4);
    // Half of the prompt is shared, as is seen when its pages are found: the next one goes on from there.
    std::copy_n(prompt.begin(), 10, other.begin());
    EXPECT_EQ(computed(other), 20);
    other.back() = 1;
    EXPECT_EQ(computed(other), 12);
    scheduler.use_policy(1);
    EXPECT_EQ(computed(prompt), 20) << "states are of a version of the weights, too";
}

TEST(SchedulerStates, ALongPromptIsKeptForAConversationThatGoesOn) {
    for (const bool keeps : {false, true}) {
        ImaginedCache cache(300, 2);
        Scheduler scheduler({.rows = 1,
                             .pass_tokens = 400,
                             .prefill_tokens = 400,
                             .context = 400,
                             .keeps_states = true,
                             .snapshots = 1,
                             .keeps_prompts = keeps},
                            300, page);
        std::mt19937 random(2);
        Ids prompt = ids_from(random, 300, 1000);
        for (int turn = 0; turn < 2; ++turn) {
            scheduler.add({.prompt = prompt, .max_new_tokens = 1});
            while (step(scheduler, cache)) {
            }
            for (int32_t i = 0; i < 20; ++i) prompt.push_back(i);
        }
        EXPECT_EQ(cache.computed, keeps ? 320 + 4 : 300 + 320);
    }
}

}  // namespace
}  // namespace unsloth
