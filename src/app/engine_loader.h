// Opens the engine (the library with LibTorch) from the executable's folder. Only the commands that compute do so.
#pragma once

#include <memory>

#include "unsloth/engine_api/engine.h"

namespace unsloth::app {

/// Runtime Error that names the missing library and what to do when the engine or one of its dependencies cannot be
/// loaded. The library stays loaded to the end of the process.
std::unique_ptr<engine_api::Engine> load_engine();
/// The same with what the configuration says of LibTorch's allocator.
std::unique_ptr<engine_api::Engine> load_engine(const config::Config& config);

}  // namespace unsloth::app
