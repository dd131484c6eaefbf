// Names of an adapter's tensors that other versions of transformers gave them.
#pragma once

#include "unsloth/formats/safetensors.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

/// Gives today's names to an adapter made with transformers before 4.52. Models that see images then had no
/// language_model in their modules' paths, or had a whole text model of that name. Others stay as they are.
void take_older_names(SafetensorsFile& file, const spec::ModelSpec& model);

}  // namespace unsloth::formats
