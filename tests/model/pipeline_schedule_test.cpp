// The order in which a pipeline's ranks take micro-batches.
#include "unsloth/model/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace unsloth::model {
namespace {

using enum Direction;

/// "F0 F1 B0 …"; of several chunks "F0.1".
std::string text_of(const ChunkPasses& passes, bool chunks = false) {
    std::string text;
    for (const ChunkPass& pass : passes) {
        text +=
            (text.empty() ? "" : " ") + std::string(pass.direction == forward ? "F" : "B") + std::to_string(pass.micro);
        if (chunks) text += "." + std::to_string(pass.chunk);
    }
    return text;
}

TEST(PipelineSchedule, OneForwardOneBackward) {
    const PipelineSchedule schedule = pipeline_schedule({.ranks = 3, .micro_batches = 4});
    ASSERT_EQ(schedule.passes.size(), 3U);
    EXPECT_EQ(text_of(schedule.passes[0]), "F0 F1 F2 B0 F3 B1 B2 B3");
    EXPECT_EQ(text_of(schedule.passes[1]), "F0 F1 B0 F2 B1 F3 B2 B3");
    EXPECT_EQ(text_of(schedule.passes[2]), "F0 B0 F1 B1 F2 B2 F3 B3");
    EXPECT_EQ(schedule.places, (std::vector<int>{3, 2, 1}));
}

TEST(PipelineSchedule, FewerUnderWayAreHeldAtOnce) {
    const PipelineSchedule schedule = pipeline_schedule({.ranks = 3, .micro_batches = 4, .in_flight = 2});
    EXPECT_EQ(schedule.places, (std::vector<int>{2, 1, 1}));
    EXPECT_EQ(text_of(schedule.passes[0]), "F0 F1 B0 F2 B1 F3 B2 B3");
    EXPECT_EQ(pipeline_schedule({.ranks = 4, .micro_batches = 2}).places, (std::vector<int>{2, 2, 2, 1}));
}

TEST(PipelineSchedule, Interleaved) {
    const PipelineSchedule schedule = pipeline_schedule({.ranks = 2, .chunks = 2, .micro_batches = 4});
    EXPECT_EQ(text_of(schedule.passes[0], true),
              "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
    EXPECT_EQ(text_of(schedule.passes[1], true),
              "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

/// Runs the ranks' passes as their order and their messages allow: with places that are taken again when what was sent
/// from them has been received, and messages that are received in the order in which they were sent. The time it takes.
int64_t run(const PipelineShape& shape, const PipelineSchedule& schedule) {
    using Place = std::tuple<int, int, Direction>;  // chunk of all, micro-batch
    std::map<Place, int64_t> begin, end;
    std::vector<std::size_t> next(static_cast<std::size_t>(shape.ranks));
    std::vector<int64_t> free(next.size());
    std::map<std::tuple<int, Direction>, std::vector<Place>> sent, received;  // over the border above a rank
    const int last = shape.ranks * shape.chunks - 1;
    for (bool moved = true; std::exchange(moved, false);)
        for (int rank = 0; rank < shape.ranks; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            if (next[r] == schedule.passes[r].size()) continue;
            const ChunkPass pass = schedule.passes[r][next[r]];
            const int range = pass.chunk * shape.ranks + rank;
            std::vector<Place> needs, begun;
            if (pass.direction == forward) {
                if (range > 0) needs.emplace_back(range - 1, pass.micro, forward);
                if (const int before = pass.micro - schedule.places[r]; pass.chunk == 0 && before >= 0) {
                    needs.emplace_back(rank, before, backward);
                    if (rank > 0) begun.emplace_back(rank - 1, before, backward);
                }
            } else {
                needs.emplace_back(range == last ? range : range + 1, pass.micro, range == last ? forward : backward);
            }
            int64_t ready = free[r];
            bool can = true;
            for (const Place& place : needs) can = can && end.contains(place);
            for (const Place& place : begun) can = can && begin.contains(place);
            if (!can) continue;
            for (const Place& place : needs) ready = std::max(ready, end[place]);
            for (const Place& place : begun) ready = std::max(ready, begin[place]);
            const Place own{range, pass.micro, pass.direction};
            begin[own] = ready;
            free[r] = end[own] = ready + (pass.direction == forward ? 1 : 2);
            const int above = rank, below = (rank + shape.ranks - 1) % shape.ranks;
            if (pass.direction == forward) {
                if (range < last) sent[{above, forward}].push_back(own);
                if (range > 0) received[{below, forward}].emplace_back(range - 1, pass.micro, forward);
            } else {
                if (range > 0) sent[{below, backward}].push_back(own);
                if (range < last) received[{above, backward}].emplace_back(range + 1, pass.micro, backward);
            }
            ++next[r];
            moved = true;
        }
    for (std::size_t r = 0; r < next.size(); ++r) EXPECT_EQ(next[r], schedule.passes[r].size()) << "rank " << r;
    EXPECT_EQ(sent, received);
    return *std::max_element(free.begin(), free.end());
}

TEST(PipelineSchedule, NoRankWaitsForWhatCannotCome) {
    for (const int ranks : {2, 3, 4, 8})
        for (const int chunks : {1, 2, 3})
            for (const int micro : {1, 2, 3, 4, 5, 8, 9, 16})
                for (const int in_flight : {0, 1, 2, 12}) {
                    if (chunks > 1 && in_flight > 0 && in_flight < ranks) continue;  // refused
                    const PipelineShape shape{ranks, chunks, micro, in_flight};
                    const std::string text = std::to_string(ranks) + " ranks, " + std::to_string(chunks) + " chunks, " +
                                             std::to_string(micro) + " micro-batches, in flight " +
                                             std::to_string(in_flight);
                    SCOPED_TRACE(text);
                    const PipelineSchedule schedule = pipeline_schedule(shape);
                    const int64_t time = run(shape, schedule);
                    for (const ChunkPasses& passes : schedule.passes)
                        EXPECT_EQ(passes.size(), static_cast<std::size_t>(2 * chunks * micro));
                    // A step with fewer micro-batches keeps to the places of whole ones.
                    for (int fewer = 1; fewer < micro; ++fewer) {
                        PipelineShape last = shape;
                        last.micro_batches = fewer;
                        run(last, pipeline_schedule(last, schedule.places));
                    }
                    if ((chunks > 1 && micro % ranks != 0) || (in_flight > 0 && in_flight < ranks)) continue;
                    const double busy = 3.0 * chunks * micro;
                    EXPECT_NEAR(1 - busy / static_cast<double>(time), pipeline_bubble(shape), 1e-12);
                    EXPECT_EQ(time, schedule.time);
                }
}

spec::Stage stage_of(int rank) {
    return {rank, 2, {{0, 2}, {2, 3}}};
}

TEST(PipelineSchedule, PassesCrossStageBoundaries) {
    using Part = Action::Part;
    const TrainingRoute route{.layers = 3, .embedding_backward = true};
    const ChunkPasses passes{{forward, 0, 0}, {backward, 0, 0}};
    EXPECT_EQ(pipeline_pass_schedule(stage_of(0), passes, route), (PassSchedule{{Part::inputs, forward, 0, -1},
                                                                                {Part::embedding, forward, 0, -1},
                                                                                {Part::layer, forward, 0, 0},
                                                                                {Part::layer, forward, 0, 1},
                                                                                {Part::send, forward, 0, 2},
                                                                                {Part::receive, backward, 0, 2},
                                                                                {Part::layer, backward, 0, 1},
                                                                                {Part::layer, backward, 0, 0},
                                                                                {Part::embedding, backward, 0, -1}}));
    EXPECT_EQ(pipeline_pass_schedule(stage_of(1), passes, route), (PassSchedule{{Part::inputs, forward, 0, -1},
                                                                                {Part::receive, forward, 0, 2},
                                                                                {Part::layer, forward, 0, 2},
                                                                                {Part::head, forward, 0, -1},
                                                                                {Part::layer, backward, 0, 2},
                                                                                {Part::send, backward, 0, 2}}));
    // No gradient goes below the lowest layer that trains.
    const TrainingRoute higher{.layers = 3, .lowest_layer = 2};
    EXPECT_EQ(pipeline_pass_schedule(stage_of(0), passes, higher).back(), (Action{Part::send, forward, 0, 2}));
    EXPECT_EQ(pipeline_pass_schedule(stage_of(1), passes, higher).back(), (Action{Part::layer, backward, 0, 2}));
    EXPECT_EQ(pipeline_forward(stage_of(1)),
              (PassSchedule{{Part::receive, forward, 0, 2}, {Part::layer, forward, 0, 2}}));
}

}  // namespace
}  // namespace unsloth::model
