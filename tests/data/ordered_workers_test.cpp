#include "data/ordered_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace unsloth::data {
namespace {

constexpr int pieces = 500, workers = 4;

/// The results taken, and what was thrown, when the piece `bad` fails in `where`.
struct Outcome {
    std::vector<int> taken;
    std::string thrown;
};
enum class Where { nowhere, next, make, take };

Outcome run(Where where, int bad) {
    Outcome outcome;
    int next = 0;  // workers ask one at a time
    const auto fail_at = [&](Where here, int piece) {
        if (where == here && piece >= bad) throw std::runtime_error("piece " + std::to_string(piece));
    };
    try {
        run_in_order<int, int>(
            workers,
            [&]() -> std::optional<int> {
                fail_at(Where::next, next);
                return next < pieces ? std::optional(next++) : std::nullopt;
            },
            [&](int piece) {
                fail_at(Where::make, piece);
                return piece * piece;
            },
            [&](int square) {
                fail_at(Where::take, static_cast<int>(outcome.taken.size()));
                outcome.taken.push_back(square);
            });
    } catch (const std::runtime_error& error) {
        outcome.thrown = error.what();
    }
    return outcome;
}

TEST(OrderedWorkers, ResultsComeInTheOrderOfThePieces) {
    const Outcome whole = run(Where::nowhere, 0);
    ASSERT_EQ(whole.taken.size(), static_cast<std::size_t>(pieces));
    for (int i = 0; i < pieces; ++i) EXPECT_EQ(whole.taken[static_cast<std::size_t>(i)], i * i);
    EXPECT_EQ(whole.thrown, "");
}

TEST(OrderedWorkers, TheFirstFailureInThatOrderIsThrownAfterWhatCameBefore) {
    for (const Where where : {Where::next, Where::make, Where::take})
        for (const int bad : {0, 1, 137}) {
            const Outcome outcome = run(where, bad);
            EXPECT_EQ(outcome.thrown, "piece " + std::to_string(bad));
            EXPECT_EQ(outcome.taken.size(), static_cast<std::size_t>(bad));
        }
}

}  // namespace
}  // namespace unsloth::data
