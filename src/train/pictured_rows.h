// Training rows with images, for a run's page.
#pragma once

#include <string>

#include "unsloth/data/dataset.h"
#include "unsloth/session/session.h"

namespace unsloth::train {

/// The first few of `rows` that have images, as lines {"row", "tokens", "text", "images": [{"tokens": [begin, end],
/// "url"}]} of report::pictured_file: the text as data::show_tokens() has it, a thumbnail of each image. Empty where no
/// row has one. An image that cannot be decoded has none: training refuses it when its row comes.
std::string pictured_rows(const data::Dataset& rows, const session::OpenedModel& opened);

}  // namespace unsloth::train
