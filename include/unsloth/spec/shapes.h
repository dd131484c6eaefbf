// Published model shapes by name.
#pragma once

#include <string>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

/// The shape of that name; usage Error that lists the names otherwise.
ModelSpec builtin_shape(const std::string& name);
std::vector<std::string> builtin_shape_names();

}  // namespace unsloth::spec
