// What the commands that answer share: bounds of a sequence, and the cache's size.
#pragma once

#include "unsloth/config/config.h"
#include "unsloth/engine_api/engine.h"
#include "unsloth/placement/load_request.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::commands {

/// usage Error where --max_model_len is more than the model allows.
void require_max_model_len(const engine_api::GenerateRequest& request, const spec::ModelSpec& spec);

/// Of `rows` sequences of up to `context` tokens, or as --kv_cache_memory says. usage Error where that holds none.
placement::CacheSize answer_cache(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& request,
                                  const spec::ModelSpec& spec, int64_t rows, int64_t context);

}  // namespace unsloth::commands
