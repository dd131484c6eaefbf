// The order in which micro-batches pass through the network.
#include "unsloth/model/pass_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace unsloth::model {
namespace {

using Part = Action::Part;
using enum Direction;

TEST(PassSchedule, OneMicroBatchGoesUpAndDown) {
    const PassSchedule expected{{Part::inputs, forward, 0, -1}, {Part::embedding, forward, 0, -1},
                                {Part::layer, forward, 0, 0},   {Part::layer, forward, 0, 1},
                                {Part::layer, forward, 0, 2},   {Part::head, forward, 0, -1},
                                {Part::layer, backward, 0, 2},  {Part::layer, backward, 0, 1},
                                {Part::layer, backward, 0, 0},  {Part::embedding, backward, 0, -1}};
    EXPECT_EQ(training_schedule({.layers = 3, .embedding_backward = true}), expected);
    EXPECT_EQ(forward_schedule(3), PassSchedule(expected.begin() + 1, expected.begin() + 5));
}

TEST(PassSchedule, EndsAtTheLowestLayerThatTrains) {
    const PassSchedule actions = training_schedule({.layers = 5, .lowest_layer = 3});
    EXPECT_EQ(actions.back(), (Action{Part::layer, backward, 0, 3}));
    EXPECT_EQ(std::count_if(actions.begin(), actions.end(), [](const Action& a) { return a.direction == backward; }),
              2);
}

TEST(PassSchedule, SeveralInFlightMeetEachPartOneAfterTheOther) {
    const TrainingRoute route{.layers = 4, .micro_batches = 3, .lowest_layer = 1, .embedding_backward = false};
    const PassSchedule actions = training_schedule(route);
    // Of one micro-batch they are what it does alone, and each part is left only when all have been there.
    for (int micro = 0; micro < 3; ++micro) {
        PassSchedule own;
        for (Action action : actions)
            if (action.micro == micro) action.micro = 0, own.push_back(action);
        EXPECT_EQ(own, training_schedule({.layers = 4, .lowest_layer = 1}));
    }
    ASSERT_EQ(actions.size() % 3, 0U);
    for (std::size_t i = 0; i < actions.size(); ++i) {
        EXPECT_EQ(actions[i].micro, static_cast<int>(i % 3));
        Action first = actions[i - i % 3];
        first.micro = actions[i].micro;
        EXPECT_EQ(actions[i], first);
    }
}

/// A head that is the embeddings, too, reads its own piece last: that is the one whose slot others take.
TEST(PassSchedule, ActionsNameThePiecesOfParameters) {
    const PassSchedule actions = training_schedule({.layers = 2, .embedding_backward = true});
    for (const bool tied : {false, true}) {
        const Units units{2, tied};
        std::vector<int> read, trained;
        for (const Action& action : actions) {
            for (const int unit : units.read(action)) read.push_back(unit);
            for (const int unit : units.trained(action)) trained.push_back(unit);
        }
        EXPECT_EQ(read, tied ? (std::vector{0, 1, 2, 0, 3, 2, 1}) : (std::vector{0, 1, 2, 3, 2, 1}));
        EXPECT_EQ(trained, tied ? (std::vector{0, 3, 2, 1, 0}) : (std::vector{3, 2, 1, 0}));
    }
}

TEST(PassSchedule, StretchesAreOfOnePartAndDirection) {
    const PassSchedule actions = training_schedule({.layers = 4, .micro_batches = 2, .embedding_backward = true});
    std::vector<std::size_t> lengths;
    for (std::size_t first = 0; first < actions.size(); first = stretch_end(actions, first))
        lengths.push_back(stretch_end(actions, first) - first);
    EXPECT_EQ(lengths, (std::vector<std::size_t>{2, 2, 8, 2, 8, 2}));
}

}  // namespace
}  // namespace unsloth::model
