// Published model shapes by name: the config.json files of shapes/.
#pragma once

#include <string>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

/// The config.json of that name; usage Error that lists the names otherwise.
std::string builtin_config(const std::string& name);
/// The model that it describes.
spec::ModelSpec builtin_shape(const std::string& name);
std::vector<std::string> builtin_shape_names();

}  // namespace unsloth::formats
