// What the commands share: the model on disk, tokenizer and data, and the model in memory.
#pragma once

#include <memory>
#include <optional>

#include "unsloth/comm/group.h"
#include "unsloth/config/config.h"
#include "unsloth/data/encoder.h"
#include "unsloth/data/training_data.h"
#include "unsloth/engine_api/engine.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/model/loader.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::train {

/// Of a forward pass whose values are not finite, of weights that are.
inline constexpr const char* overflow_advice =
    "float16 overflows where bfloat16 and float32 do not: set model.dtype to one of them.";

/// The checkpoint, and where its tokenizer lies (in an adapter's folder if that has one).
struct OpenedModel {
    std::shared_ptr<const formats::WeightFile> file;
    std::filesystem::path tokenizer_folder;
    std::string rope_scaling;  ///< instead of config.json's, as the configuration or the adapter says; empty: none

    /// Input Error when there is none, or when its ids do not fit the model's vocabulary.
    tokenizer::Tokenizer tokenizer() const;
    /// What a folder of results needs beside the weights; empty without a tokenizer.
    std::vector<std::filesystem::path> tokenizer_files() const;
    data::ModelLimits limits() const;
};
OpenedModel open_model(const config::Config& config);

/// What the configuration or the adapter says of positions; empty: what config.json says. usage Error where the two say
/// different things.
std::string rope_scaling_of(const config::Config& config);
/// usage Error with the remedy where rows as long as was asked for would have positions that the model does not know.
/// The default length is one for all models, and packed rows hold several that each begin at 0.
void require_positions(const config::LoadedConfig& loaded, const spec::ModelSpec& spec);

/// Makes the encoder of text rows when it is first needed: tokenised rows do without a tokenizer.
data::EncoderMaker encoder_maker(const OpenedModel& opened, const config::Config& config);

/// The adapters that lora.* asks for.
spec::LoraSpec lora_spec(const config::LoraOptions& options);

/// The request that model.* and lora.* describe; `sizes` still to be set. Logs what an adapter folder decides, and is a
/// usage Error where a given lora option contradicts it. `kernels` nullptr: the table that hardware.kernels names.
model::LoadRequest load_request(const config::LoadedConfig& loaded, at::Device device, bool trains,
                                std::shared_ptr<const spec::KernelTable> kernels = nullptr);

/// What processes of this machine hold of the base in its host memory, for LoadRequest::held; nullptr for a run on the
/// CPU, whose layers lie in no other memory than its own.
std::shared_ptr<memory::HeldMemory> held_memory(const formats::WeightFile& file, at::Device device);

/// What passes over batches within these limits are planned for.
void size_for(model::ActivationSizes& sizes, const data::BatchLimits& limits);

/// Rows of logits that the lm_head makes at a time.
int64_t head_chunk_rows(const spec::ModelSpec& spec, at::ScalarType dtype, int64_t rows);

/// A context on the plan's device with the plan's kernels and what the configuration says of reductions.
std::unique_ptr<ops::Context> make_context(const config::Config& config, const model::ModelPlan& plan);

/// StepSettings::bucket_bytes. Sums take multiprocessors from the backward pass, whose products count on all of them:
/// beside it they cost more than NVLink needs after it, and are worth it where a network is between the ranks.
int64_t bucket_bytes(const config::Config& config, const comm::Group* group);

/// How the ranks on this machine load the model together: each GPU's rank reads a part, the rest comes from the others.
/// Alone without a group, on the CPU, where the file's map serves all processes, and where the ranks' plans differ
/// (GPUs that are not alike). Called by all ranks.
weights::LoadShare load_share(comm::Group* group, const model::ModelPlan& plan);

/// A model for forward passes alone (score, generate): planned, checked against memory, loaded.
struct LoadedModel {
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<model::Model> model;
};
/// Of the keys and values that generation keeps.
struct CacheSize {
    int64_t tokens = 0;      ///< of all sequences; 0: none are kept
    int64_t context = 0;     ///< of one
    bool shrinks = false;    ///< to what is free, but not below `context`
    bool in_pieces = false;  ///< prompts may go in so: passes shrink first, but not below 2048 tokens or the sequences
    bool in_8_bit = false;   ///< keys and values
};
/// Room for so many sequences of up to `context` tokens; where that is more than is free, for fewer.
CacheSize cache_for(int64_t rows, int64_t context);
/// Makes a plan for passes alone smaller until it takes no more than `bytes` of the device, or cannot be: first what
/// costs least, passes of prompts, then adapters that stay beside tiles, then the cache.
void shrink(model::ModelPlan& plan, const CacheSize& cache, int64_t bytes);
/// Passes have from `fewest_tokens` to `tokens` tokens. `adapters`: that generation's rows choose among, instead of the
/// configuration's one.
LoadedModel load_for_inference(const config::LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens,
                               int64_t segments, int64_t head_rows, int64_t fewest_tokens, const CacheSize& cache = {},
                               const engine_api::NamedFolders& adapters = {});

/// The configuration of answers by adapters alone: their base is what the first was trained on, positions are scaled as
/// they were in training. usage Error, with an adapter's name, where they were scaled differently.
config::LoadedConfig with_base(config::LoadedConfig loaded, const engine_api::NamedFolders& adapters = {});

}  // namespace unsloth::train
