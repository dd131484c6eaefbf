#include "commands/answer_sizes.h"

#include "unsloth/core/error.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/ops/dtype.h"

namespace unsloth::commands {

void require_max_model_len(const engine_api::GenerateRequest& request, const spec::ModelSpec& spec) {
    if (request.max_context > spec.usable_positions())
        throw Error("model.too-many-positions",
                    cat("--max_model_len ", request.max_context, ": the model allows ", spec.usable_positions()),
                    "Lower it, or extend the positions with --rope_scaling.");
}

placement::CacheSize answer_cache(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& request,
                                  const spec::ModelSpec& spec, int64_t rows, int64_t context) {
    placement::CacheSize cache = placement::cache_for(rows, context);
    cache.in_8_bit = request.kv_cache_dtype == engine_api::KvCacheDtype::fp8;
    cache.in_pieces = !spec.has_rope(spec::RopeSpec::Type::dynamic);  // else prompts go in at once
    if (request.kv_bytes == 0) return cache;
    const int64_t token =
        generate::cache_bytes_per_token(spec, ops::scalar_type(loaded.config.model.dtype), cache.in_8_bit);
    cache.tokens = request.kv_bytes / (token * ops::page_tokens) * ops::page_tokens;
    cache.shrinks = false;
    if (cache.tokens < context)
        throw Error("memory.small-cache",
                    cat("--kv_cache_memory ", request.kv_memory, " holds ", cache.tokens,
                        " tokens, a prompt and its answer have up to ", context),
                    cat("A token takes ", token, " bytes: give ", ops::pages_of(context) * ops::page_tokens * token,
                        " at least, or lower --max_model_len or --max_new_tokens."));
    return cache;
}

}  // namespace unsloth::commands
