#include "unsloth/model/pipeline_schedule.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::model {
namespace {

constexpr int64_t forward_time = 1, backward_time = 2, never = std::numeric_limits<int64_t>::max();

/// Every rank's forward passes come in this order.
std::vector<std::pair<int, int>> order_of(const PipelineShape& shape, Direction direction) {
    std::vector<std::pair<int, int>> order;  // micro-batch, chunk
    const int group = shape.chunks == 1 ? shape.micro_batches : shape.ranks;
    for (int first = 0; first < shape.micro_batches; first += group)
        for (int i = 0; i < shape.chunks; ++i)
            for (int micro = first; micro < std::min(first + group, shape.micro_batches); ++micro)
                order.emplace_back(micro, direction == Direction::forward ? i : shape.chunks - 1 - i);
    return order;
}

int most_between_passes(const PipelineShape& shape) {
    return shape.in_flight > 0 ? shape.in_flight : shape.ranks;
}

/// How many micro-batches a rank has in flight in this order.
int most_in_flight(const ChunkPasses& passes) {
    int held = 0, most = 0;
    std::set<int> begun;
    for (const ChunkPass& pass : passes) {
        if (pass.direction == Direction::forward && begun.insert(pass.micro).second) most = std::max(most, ++held);
        if (pass.direction == Direction::backward && pass.chunk == 0) --held;
    }
    return most;
}

/// Takes, again and again, the pass that can begin first.
class Simulation {
  public:
    /// `places`: of each rank's micro-batches in flight; empty: any number.
    Simulation(const PipelineShape& shape, const std::vector<int>& places)
        : shape_(shape),
          places_(places),
          forwards_(order_of(shape, Direction::forward)),
          backwards_(order_of(shape, Direction::backward)),
          ranks_(static_cast<std::size_t>(shape.ranks)) {
        const std::size_t all = static_cast<std::size_t>(shape.ranks * shape.chunks * shape.micro_batches);
        forward_end_.assign(all, never);
        backward_begin_ = backward_end_ = forward_end_;
    }

    PipelineSchedule run() {
        PipelineSchedule schedule{.places = places_};
        for (std::size_t left = 2 * forward_end_.size(); left > 0; --left) {
            Candidate first;
            for (int rank = 0; rank < shape_.ranks; ++rank) {
                const Candidate candidate = next(rank);
                if (candidate.begin < first.begin) first = candidate;
            }
            UNSLOTH_CHECK(first.begin != never, "a pipeline's schedule pauses");
            take(first);
        }
        for (Rank& rank : ranks_) {
            schedule.passes.push_back(std::move(rank.passes));
            schedule.time = std::max(schedule.time, rank.free);
        }
        return schedule;
    }

  private:
    struct Rank {
        ChunkPasses passes;
        std::size_t forwards = 0, backwards = 0;  ///< taken
        int64_t free = 0;
    };
    struct Candidate {
        int rank = 0;
        ChunkPass pass;
        int64_t begin = never;
    };
    Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    /// A place in the network for one micro-batch; `range`: the chunk's number among all ranks'.
    std::size_t place(int range, int micro) const {
        return static_cast<std::size_t>(range * shape_.micro_batches + micro);
    }

    /// First as many forward passes as all ranks need to come to be busy, then one each way in turn.
    Candidate next(int rank) {
        const Rank& own = at(rank);
        if (own.backwards == backwards_.size()) return {};
        const bool turns = own.forwards == forwards_.size() || own.forwards - own.backwards == most_begun(rank);
        return turns ? backward(rank) : forward(rank);
    }
    Candidate forward(int rank) {
        const Rank& own = at(rank);
        const auto [micro, chunk] = forwards_[own.forwards];
        const int range = chunk * shape_.ranks + rank;
        int64_t begin = range == 0 ? 0 : forward_end_[place(range - 1, micro)];
        const int before = places_.empty() || chunk > 0 ? -1 : micro - places_[static_cast<std::size_t>(rank)];
        if (before >= 0)
            begin = std::max(
                {begin, backward_end_[place(rank, before)], backward_begin_[place(std::max(rank - 1, 0), before)]});
        return {rank, {Direction::forward, micro, chunk}, begin == never ? never : std::max(begin, own.free)};
    }
    Candidate backward(int rank) {
        const Rank& own = at(rank);
        const auto [micro, chunk] = backwards_[own.backwards];
        const int range = chunk * shape_.ranks + rank, last = shape_.ranks * shape_.chunks - 1;
        const int64_t begin =
            range == last ? forward_end_[place(range, micro)] : backward_end_[place(range + 1, micro)];
        return {rank, {Direction::backward, micro, chunk}, begin == never ? never : std::max(begin, own.free)};
    }
    void take(const Candidate& taken) {
        Rank& own = at(taken.rank);
        const std::size_t where = place(taken.pass.chunk * shape_.ranks + taken.rank, taken.pass.micro);
        own.passes.push_back(taken.pass);
        if (taken.pass.direction == Direction::forward) {
            ++own.forwards;
            own.free = forward_end_[where] = taken.begin + forward_time;
        } else {
            ++own.backwards;
            backward_begin_[where] = taken.begin;
            own.free = backward_end_[where] = taken.begin + backward_time;
        }
    }
    /// Passes begun and not gone back.
    std::size_t most_begun(int rank) const {
        const int ranks_after = shape_.ranks - rank - 1, more = most_between_passes(shape_) - shape_.ranks;
        if (shape_.chunks == 1) return static_cast<std::size_t>(std::max(1, ranks_after + 1 + more));
        return static_cast<std::size_t>(2 * ranks_after + (shape_.chunks - 1) * shape_.ranks + 1 + std::max(0, more));
    }

    PipelineShape shape_;
    std::vector<int> places_;
    std::vector<std::pair<int, int>> forwards_, backwards_;
    std::vector<Rank> ranks_;
    std::vector<int64_t> forward_end_, backward_begin_, backward_end_;
};

}  // namespace

PipelineSchedule pipeline_schedule(const PipelineShape& shape, const std::vector<int>& places) {
    if (shape.chunks > 1 && shape.micro_batches % shape.ranks != 0) {
        // As for whole groups, of which some micro-batches are not there.
        PipelineShape whole = shape;
        whole.micro_batches += shape.ranks - shape.micro_batches % shape.ranks;
        PipelineSchedule schedule = pipeline_schedule(whole, places);
        for (ChunkPasses& passes : schedule.passes)
            std::erase_if(passes, [&](const ChunkPass& pass) { return pass.micro >= shape.micro_batches; });
        return schedule;
    }
    if (!places.empty()) return Simulation(shape, places).run();
    std::vector<int> own;
    if (shape.chunks == 1) {
        for (int rank = 0; rank < shape.ranks; ++rank)
            own.push_back(std::clamp(most_between_passes(shape) - rank, 1, shape.micro_batches));
    } else {
        for (const ChunkPasses& passes : Simulation(shape, {}).run().passes) own.push_back(most_in_flight(passes));
    }
    return Simulation(shape, own).run();
}

double pipeline_bubble(const PipelineShape& shape) {
    return (shape.ranks - 1.0) / (1.0 * shape.chunks * shape.micro_batches + shape.ranks - 1);
}

PassSchedule pipeline_pass_schedule(const spec::Stage& stage, const ChunkPasses& passes, const TrainingRoute& route) {
    PassSchedule actions;
    std::set<int> begun;
    for (const auto& [direction, micro, chunk] : passes) {
        const spec::LayerRange& range = stage.chunk(chunk);
        const auto add = [&, micro = micro, direction = direction](Action::Part part, int layer = -1) {
            actions.push_back({part, direction, micro, layer});
        };
        // Whether a gradient passes the border below this layer.
        const auto goes_below = [&](int layer) { return layer > route.lowest_layer || route.embedding_backward; };
        if (direction == Direction::forward) {
            if (begun.insert(micro).second) add(Action::Part::inputs);
            range.begin > 0 ? add(Action::Part::receive, range.begin) : add(Action::Part::embedding);
            for (int layer = range.begin; layer < range.end; ++layer) add(Action::Part::layer, layer);
            range.end < route.layers ? add(Action::Part::send, range.end) : add(Action::Part::head);
        } else {
            if (range.end < route.layers && goes_below(range.end)) add(Action::Part::receive, range.end);
            for (int layer = range.end - 1; layer >= std::max(range.begin, route.lowest_layer); --layer)
                add(Action::Part::layer, layer);
            if (range.begin > 0 && goes_below(range.begin)) add(Action::Part::send, range.begin);
            if (range.begin == 0 && route.embedding_backward) add(Action::Part::embedding);
        }
    }
    return actions;
}

PassSchedule pipeline_forward(const spec::Stage& stage) {
    PassSchedule actions;
    for (int chunk = 0; chunk < stage.chunks_each(); ++chunk) {
        const spec::LayerRange& range = stage.chunk(chunk);
        if (range.begin > 0)
            actions.push_back({.part = Action::Part::receive, .layer = range.begin});
        else
            actions.push_back({.part = Action::Part::embedding});
        for (int layer = range.begin; layer < range.end; ++layer)
            actions.push_back({.part = Action::Part::layer, .layer = layer});
        if (range.end < stage.chunks.back().end) actions.push_back({.part = Action::Part::send, .layer = range.end});
    }
    return actions;
}

}  // namespace unsloth::model
