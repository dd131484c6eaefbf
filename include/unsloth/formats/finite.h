// Whether weights are numbers: one NaN or infinity spoils what is computed with it, without a word.
#pragma once

#include <cstdint>
#include <optional>

#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"

namespace unsloth::formats {

/// The first element, in the tensor's order, that is a NaN or an infinity, or becomes one in the type `held`; nullopt:
/// there is none. Reads all bytes, on all cores.
std::optional<int64_t> first_not_finite(const TensorView& tensor, spec::DType held = spec::DType::f32);

/// input Error that names the file, the tensor, the place and the value.
void require_finite(const TensorView& tensor, spec::DType held = spec::DType::f32);
/// The same for a 4-bit weight's block maxima; `name` as in the file.
void require_finite(const std::string& name, const Quant4Weight& weight, spec::DType held = spec::DType::f32);
/// The same for an MXFP4 weight.
void require_finite(const std::string& name, const Mxfp4Weight& weight, spec::DType held = spec::DType::f32);
/// For all weights of a model that computes in `held`, norms in fp32; or of an adapter.
void require_finite(const WeightFile& model, spec::DType held = spec::DType::f32);
void require_finite(const Adapter& adapter);

}  // namespace unsloth::formats
