// What the commands share: the device, the model on disk, tokenizer and data, and the model in memory.
#pragma once

#include <memory>
#include <optional>

#include "unsloth/config/config.h"
#include "unsloth/data/dataset.h"
#include "unsloth/data/encoder.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/model/loader.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::train {

/// hardware.device as a device; usage Error when it asks for a GPU that is not there.
at::Device choose_device(const std::string& option);
/// "NVIDIA H200 (139.8 GiB)", "CPU, 8 threads".
std::string describe_device(at::Device device);

/// The checkpoint with its tokenizer (where its folder has one).
struct OpenedModel {
    std::shared_ptr<const WeightFile> file;
    std::optional<Tokenizer> tokenizer;
    std::unique_ptr<RowEncoder> encoder;
};
/// Opens model.path; checks that the tokenizer's ids fit the model's vocabulary. With an adapter folder that holds a tokenizer, that
/// one is taken.
OpenedModel open_model(const Config& config);

/// How rows become samples for this model. `keep_all_masked` for scoring.
DatasetOptions dataset_options(const LoadedConfig& loaded, const OpenedModel& opened);

/// The adapters that lora.* asks for.
LoraSpec lora_spec(const LoraOptions& options);

/// The request that model.* and lora.* describe; `sizes` still to be set. Logs what an adapter folder decides, and is a usage Error
/// where a given lora option contradicts it.
model::LoadRequest load_request(const LoadedConfig& loaded, at::Device device, bool trains);

/// Rows of logits that the lm_head makes at a time.
int64_t head_chunk_rows(const ModelSpec& spec, at::ScalarType dtype, int64_t rows);

/// Throws a runtime Error with the table and what would fit when the plan exceeds the device's free memory.
void require_memory(const model::ModelPlan& plan);

/// A model for forward passes alone (score, generate): planned, checked against memory, loaded.
struct LoadedModel {
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<model::Model> model;
};
LoadedModel load_for_inference(const LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens, int64_t segments, int64_t head_rows);

}  // namespace unsloth::train
