// What a model or adapter folder or a GGUF file holds, and whether it is sound: `unsloth-train inspect`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/formats/safetensors.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

struct InspectedTensor {
    std::string name;
    std::string dtype;  ///< safetensors' spelling; "nf4", "fp4" or "mxfp4" for a 4-bit weight, "int8" for an 8-bit
                        ///< one; ggml's of a GGUF file
    std::vector<int64_t> shape;  ///< of the weight; a 4-bit weight's own, not its packed form's
    std::size_t bytes = 0;       ///< stored, companions included
};

struct Inspection {
    std::string path;                      ///< what was asked for
    std::string kind;                      ///< "model", "adapter" or "gguf"
    std::optional<spec::ModelSpec> model;  ///< absent when config.json is missing or refused
    std::vector<InspectedTensor> tensors;
    std::map<std::string, int64_t> kinds;  ///< how many tensors of each dtype
    int64_t parameters = 0;
    std::size_t stored_bytes = 0;
    int64_t quant_states_checked = 0;
    std::map<std::string, std::string> adapter;               ///< r, lora_alpha, target_modules, … of an adapter folder
    std::vector<std::pair<std::string, std::string>> fields;  ///< of a GGUF file: keys and values, long ones shortened
    std::vector<std::string> problems;

    bool ok() const { return problems.empty(); }
};

/// Reads everything; of the values of weights, which must be finite, block maxima stand for 4-bit codes. What is wrong
/// becomes a problem of the result; input Error only when there is no model, adapter or GGUF file at `path` at all.
Inspection inspect_path(const std::string& path);

std::string inspect_text(const Inspection& inspection);
std::string inspect_json(const Inspection& inspection);

}  // namespace unsloth::formats
