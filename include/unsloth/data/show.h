// A row as the model sees it, for people's eyes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::data {

/// How loss tokens are marked: by colour (ANSI escapes), or by the brackets U+27E6 and U+27E7 around
/// them.
enum class Marks { colour, brackets };

/// The half-open ranges of tokens that are targets: a label, and not the first token of a segment.
std::vector<std::pair<int64_t, int64_t>> target_ranges(const Sample& sample);

/// The half-open range of tokens of each of the row's images.
std::vector<std::pair<int64_t, int64_t>> image_ranges(const Sample& sample);

/// The text of each run of [begin, end) tokens, in order; joined they are the text of the whole sequence. The runs must
/// follow one another and cover it. Where a run ends within a character, its bytes are shown as U+FFFD.
std::vector<std::string> decode_runs(const tokenizer::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                     const std::vector<std::pair<int64_t, int64_t>>& runs);

/// The row's text, special tokens included, with marks around the loss tokens; a line between segments. The tokens of
/// an image are shown as its file, their number and their place. Without a tokenizer (null) the ids. Ends in a newline.
std::string show_tokens(const Sample& sample, const tokenizer::Tokenizer* tokenizer, Marks marks);

}  // namespace unsloth::data
