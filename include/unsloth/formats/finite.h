// Whether weights are numbers: one NaN or infinity spoils what is computed with it, without a word.
#pragma once

#include <cstdint>
#include <optional>

#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"

namespace unsloth::formats {

/// The first element, in the tensor's order, that is a NaN or an infinity; nullopt: there is none. Reads all bytes, on
/// all cores.
std::optional<int64_t> first_not_finite(const TensorView& tensor);

/// input Error that names the file, the tensor, the place and the value.
void require_finite(const TensorView& tensor);
/// The same for a 4-bit weight's block maxima; `name` as in the file.
void require_finite(const std::string& name, const Quant4Weight& weight);
/// For all weights of a model (8-bit ones were checked when it was opened), or of an adapter.
void require_finite(const WeightFile& model);
void require_finite(const Adapter& adapter);

}  // namespace unsloth::formats
