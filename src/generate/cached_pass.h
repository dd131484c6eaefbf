// What a pass of generation computes, from the chunks that the scheduler chose.
#pragma once

#include <vector>

#include "unsloth/generate/scheduler.h"
#include "unsloth/model/model.h"

namespace unsloth::generate {

/// Whether the logits at position t rate the prompt's next token, and somebody asks for that.
bool rates_prompt_at(const Sequence& s, int64_t t);

/// `context`: the most tokens of a sequence; `names_adapters`: each token names the adapter of its request.
model::CachedPass pass_of(const std::vector<ScheduledChunk>& parts, int64_t context, bool names_adapters);

/// Repeats the last token until the rows fill a bucket, up to `most`: it computes the same once more and writes it
/// to the same place. Of a model with gated delta nets, where these rows have no state and other keys, they have the
/// cache's page number `spare` to themselves.
void pad(model::CachedPass& pass, int64_t most, int64_t spare);

/// What the pass' tokens see of features in `slots` of a model whose layers cross, and which images the tower sees now.
void see_slots(const std::vector<ScheduledChunk>& parts, const spec::VisionSpec& tower, int64_t slots,
               model::CachedPass& pass);

}  // namespace unsloth::generate
