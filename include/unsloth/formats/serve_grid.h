// How files name the grid of values that an adapter was trained through, or that a merged model is on
// (spec/serve_grid.h).
#pragma once

#include <filesystem>
#include <string>

#include "unsloth/spec/serve_grid.h"
#include "unsloth/spec/weight_type.h"

namespace unsloth::formats {

/// In adapter_config.json, where PEFT skips it with a warning, and in the config.json of a merged model.
inline constexpr const char* serve_grid_key = "serve_grid";

/// The grid of this name. Input Error, naming the source, for one that is not known.
spec::ServeGrid read_grid(const std::string& name, const std::string& source);

/// What a model's linears on a grid are written in, which holds all of its values: nf4 as codes, others as values.
spec::WeightType type_on_grid(spec::ServeGrid grid);

/// The text of a config.json with the key for this grid; as it is for none.
std::string with_serve_grid(const std::string& config, spec::ServeGrid grid);
/// The grid that the folder's config.json says the layers' linears are on; none where it says nothing.
spec::ServeGrid grid_of_folder(const std::filesystem::path& folder);

}  // namespace unsloth::formats
