// Published model shapes by name, for `unsloth-train init`.
#pragma once

#include <string>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::train {

/// The shape of that name; usage Error that lists the names otherwise.
spec::ModelSpec builtin_shape(const std::string& name);
std::vector<std::string> builtin_shape_names();

}  // namespace unsloth::train
