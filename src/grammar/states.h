// The sets of places at which a text may stand, each with a number, and where bytes lead from one to another. They are
// made as texts come to them: a grammar that calls itself has no end of them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "grammar/nodes.h"
#include "unsloth/grammar/matcher.h"

namespace unsloth::grammar {

class States {
  public:
    static constexpr int32_t dead = -1;
    /// Beyond these limits another set is made, also for texts that are already being matched.
    static constexpr std::size_t most_states = 20'000, most_mask_bytes = std::size_t{16} << 20;

    States(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary);

    /// Every member is safe from any thread.
    int32_t begin();
    int32_t advance(int32_t state, std::string_view bytes);
    bool may_end(int32_t state);
    void allowed(int32_t state, std::vector<uint32_t>& mask);
    bool is_full();
    /// The state of another set of the same grammar.
    int32_t take_over(States& from, int32_t state);
    const Vocabulary& vocabulary() const { return *vocabulary_; }

  private:
    /// A node, and what follows once its rule ends.
    struct Place {
        int32_t node = 0, frame = 0;
        auto operator<=>(const Place&) const = default;
    };
    /// A call that has not returned.
    struct Frame {
        int32_t back = 0, outer = 0, depth = 0;
    };
    struct State {
        std::vector<Place> places;  ///< at which bytes are read
        bool may_end = false;
        std::array<int32_t, 256> next;
        std::unique_ptr<const std::vector<uint32_t>> mask;
    };
    int32_t frame_of(int32_t back, int32_t outer);
    int32_t state_of(const std::vector<Place>& reached);
    int32_t step(int32_t state, uint8_t byte);
    void make_mask(int32_t state);

    std::shared_ptr<const Grammar> grammar_;
    std::shared_ptr<const Vocabulary> vocabulary_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<State>> states_;
    std::map<std::pair<std::vector<Place>, bool>, int32_t> numbers_;
    std::vector<Frame> frames_ = {{}};
    std::map<std::pair<int32_t, int32_t>, int32_t> frame_numbers_;
    std::size_t mask_bytes_ = 0;
};

}  // namespace unsloth::grammar
