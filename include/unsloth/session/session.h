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
#include "unsloth/model/model.h"
#include "unsloth/placement/load_request.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::session {

/// Of a forward pass whose values are not finite, of weights that are.
inline constexpr const char* overflow_advice =
    "float16 overflows where bfloat16 and float32 do not: set model.dtype to one of them.";

/// The checkpoint, and where its tokenizer is (in an adapter's folder if that has one).
struct OpenedModel {
    std::shared_ptr<const formats::WeightFile> file;
    std::filesystem::path tokenizer_folder;
    std::string rope_scaling;  ///< instead of config.json's, as the configuration or the adapter says; empty: none

    /// Input Error when there is none, or when its ids do not fit the model's vocabulary.
    tokenizer::Tokenizer tokenizer() const;
    /// What a folder of results needs in addition to the weights; empty without a tokenizer.
    std::vector<std::filesystem::path> tokenizer_files() const;
    data::ModelLimits limits() const;
};
OpenedModel open_model(const config::Config& config);

/// Gives a max_seq_length of 0 its meaning; false: it has another.
bool settle_length(config::ModelOptions& model, const spec::ModelSpec& spec);

/// usage Error with the remedy where rows as long as was asked for would have positions that the model does not know.
/// The default length is one for all models, and packed rows hold several that each begin at 0.
void require_positions(const config::LoadedConfig& loaded, const spec::ModelSpec& spec);

/// Makes the encoder of text rows when it is first needed: tokenised rows do without a tokenizer.
data::EncoderMaker encoder_maker(const OpenedModel& opened, const config::Config& config);

/// The rows of data.train_file, without the cache. Errors as data::Dataset::load().
data::Dataset read_rows(const OpenedModel& opened, const config::Config& config, const data::DatasetOptions& options);

/// The plan of a model for forward passes alone (score, generate), and what it may take.
struct PassesPlan {
    model::ModelPlan plan;
    placement::MemoryBudget budget;
};
/// Passes have from `fewest_tokens` to `tokens` tokens. `adapters`: that generation's rows choose among, instead of the
/// configuration's one; `slots`: places for such, to be filled later. `reserved`: bytes that the caller will hold as
/// well. `images`: of the largest image in rows, and most image tokens of a pass; zeros: rows have none. Reads no
/// weights; the plan may exceed its budget.
PassesPlan plan_passes(const config::LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens, int64_t segments,
                       int64_t head_rows, int64_t fewest_tokens, const placement::CacheSize& cache = {},
                       const engine_api::NamedFolders& adapters = {}, const weights::AdapterSlots& slots = {},
                       const placement::MemoryBudget& reserved = {}, const data::Dataset::ImageSizes& images = {});

struct LoadedModel {
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<model::Model> model;
};
/// Errors as placement::require_memory; input Error for weights that are not finite.
LoadedModel load(const config::LoadedConfig& loaded, const OpenedModel& opened, const PassesPlan& planned);
/// Both, one after the other.
LoadedModel load_for_inference(const config::LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens,
                               int64_t segments, int64_t head_rows, int64_t fewest_tokens,
                               const placement::CacheSize& cache = {}, const engine_api::NamedFolders& adapters = {},
                               const weights::AdapterSlots& slots = {}, const data::Dataset::ImageSizes& images = {});

/// The configuration of answers by adapters alone: their base is what the first was trained on, positions are scaled as
/// they were in training. usage Error, with an adapter's name, where they were scaled differently.
config::LoadedConfig with_base(config::LoadedConfig loaded, const engine_api::NamedFolders& adapters = {});

}  // namespace unsloth::session
