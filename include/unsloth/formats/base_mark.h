// How an adapter recognises its base, whatever its path: samples of the base's values.
#pragma once

#include <string>

#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"

namespace unsloth::formats {

/// "TYPE:HASH TYPE:HASH TYPE:HASH" of norms, embeddings and linears of three layers, as their file has them. Reads
/// about a hundred pages.
std::string base_mark(const WeightFile& base);

/// Whether two marks may be of the same weights. What is in another type cannot be compared (linears of a quantised
/// copy): then the rest decides.
bool same_base(const std::string& one, const std::string& other);

/// Warns, with both names, where the adapter was trained on other weights than these, or where that is not known and
/// the names differ. Silent for a base that was merely moved. `used`: the base as the user named it.
void warn_of_other_base(const Adapter& adapter, const WeightFile& base, const std::string& used);

}  // namespace unsloth::formats
