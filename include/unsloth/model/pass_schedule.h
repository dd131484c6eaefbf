// In which order the micro-batches in flight pass through the network: a plain list that Model::walk follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "unsloth/weights/unit.h"

namespace unsloth::model {

enum class Direction : uint8_t { forward, backward };

/// One part of the network, one way, for one micro-batch. The head makes the loss and its gradient in one go: it is
/// where a micro-batch turns round. Where ranks share the layers (model/pipeline_schedule.h), what enters a layer, or
/// its gradient, comes from one of them and goes to another.
struct Action {
    enum class Part : uint8_t { inputs, receive, embedding, layer, head, send };
    Part part = Part::layer;
    Direction direction = Direction::forward;
    int micro = 0;   ///< of the step's that are walked together, from 0
    int layer = -1;  ///< of a layer; of receive and send the one above the border
    bool operator==(const Action&) const = default;
};
using PassSchedule = std::vector<Action>;

/// A forward pass of the first micro-batch, up to the last layer's output.
inline PassSchedule forward_schedule(int layers) {
    PassSchedule actions{{Action::Part::embedding}};
    for (int layer = 0; layer < layers; ++layer) actions.push_back({.part = Action::Part::layer, .layer = layer});
    return actions;
}

/// Forward and backward passes of all micro-batches in flight, layers outer: each part of the network is met once a
/// direction, by one micro-batch after the other. With one in flight, and the next when it is through, that is the
/// usual order of gradient accumulation. Sums over micro-batches are in the same order either way.
struct TrainingRoute {
    int layers = 0;
    int micro_batches = 1;
    int lowest_layer = 0;             ///< the backward pass ends above the layers that have nothing to train below them
    bool embedding_backward = false;  ///< goes down to the embeddings
};
inline PassSchedule training_schedule(const TrainingRoute& route) {
    PassSchedule actions;
    const auto all = [&](Action::Part part, Direction direction, int layer = -1) {
        for (int micro = 0; micro < route.micro_batches; ++micro) actions.push_back({part, direction, micro, layer});
    };
    all(Action::Part::inputs, Direction::forward);
    all(Action::Part::embedding, Direction::forward);
    for (int layer = 0; layer < route.layers; ++layer) all(Action::Part::layer, Direction::forward, layer);
    all(Action::Part::head, Direction::forward);
    for (int layer = route.layers - 1; layer >= route.lowest_layer; --layer)
        all(Action::Part::layer, Direction::backward, layer);
    if (route.embedding_backward) all(Action::Part::embedding, Direction::backward);
    return actions;
}

/// The layers in the order in which they are met, each as often as it is.
inline std::vector<int> layers_of(const PassSchedule& actions) {
    std::vector<int> layers;
    for (const Action& action : actions)
        if (action.part == Action::Part::layer) layers.push_back(action.layer);
    return layers;
}

/// The parameters' units (weights/unit.h) in a network of `layers` layers, as actions meet them; `tied`: the embeddings
/// are lm_head, too.
struct Units {
    int layers = 0;
    bool tied = false;
    std::vector<int> of_head() const {
        const int head = weights::head_unit(layers);
        return tied ? std::vector{weights::embedding_unit, head} : std::vector{head};
    }
    /// What the action reads.
    std::vector<int> read(const Action& action) const {
        if (action.part == Action::Part::layer) return {weights::layer_unit(action.layer)};
        if (action.part == Action::Part::head) return of_head();
        const bool embeds = action.part == Action::Part::embedding && action.direction == Direction::forward;
        return embeds ? std::vector{weights::embedding_unit} : std::vector<int>();
    }
    /// What it adds gradients to.
    std::vector<int> trained(const Action& action) const {
        if (action.part == Action::Part::head) return of_head();
        if (action.direction == Direction::forward) return {};
        if (action.part == Action::Part::layer) return {weights::layer_unit(action.layer)};
        return action.part == Action::Part::embedding ? std::vector{weights::embedding_unit} : std::vector<int>();
    }
};

/// The end of the stretch that begins at `first`: as many actions as are of the same part and direction. A stretch of
/// layers is what can be recorded as a whole.
inline std::size_t stretch_end(const PassSchedule& actions, std::size_t first) {
    std::size_t end = first;
    while (end < actions.size() && actions[end].part == actions[first].part &&
           actions[end].direction == actions[first].direction)
        ++end;
    return end;
}

}  // namespace unsloth::model
