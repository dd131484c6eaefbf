// How long a pass of generation takes on a card: predicted from what it reads and multiplies, and the card's rates.
#pragma once

#include <cstdint>
#include <optional>

#include "unsloth/planner/card.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::planner {

class DecodingTime {
  public:
    /// Of a model whose layers are on the device in 4 bit, or in 16. Nothing where the card's rates do not say it.
    static std::optional<DecodingTime> of(const Card& card, const spec::ModelSpec& model, bool in_4bit);
    /// Of a pass of `tokens` tokens that samples `rows` tokens and reads `keys` keys and values, each for one query.
    double pass_ms(int64_t tokens, int64_t rows, int64_t keys) const;

  private:
    DecodingTime() = default;
    Card card_;
    bool in_4bit_ = false;
    double layer_parameters_ = 0, head_parameters_ = 0;  ///< of all layers; of lm_head
    double key_bytes_ = 0;                               ///< of a token, over all layers
    double state_bytes_ = 0;                             ///< of a row in a pass, of all gated delta nets
};

}  // namespace unsloth::planner
