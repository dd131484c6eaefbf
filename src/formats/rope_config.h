// What config.json says of rotary position embedding.
#pragma once

#include <cstdint>
#include <optional>

#include "formats/json.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

/// Fills a rope from an object that says its type and options. `original_length`: the config's value outside the
/// object, which wins in types that use an original length. Input Error, naming the key, for what is not computed.
void read_rope_options(const JsonReader& rope, const spec::ModelSpec& spec, spec::RopeSpec& out,
                       std::optional<int64_t> original_length = std::nullopt);
/// Fills spec.ropes, whose sizes are there, from a whole config.json. Errors as above.
void read_rope(const JsonReader& config, spec::ModelSpec& spec);

}  // namespace unsloth::formats
