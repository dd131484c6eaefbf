#include "unsloth/formats/inspect.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/finite.h"
#include "unsloth/formats/gguf.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/mxfp4.h"
#include "unsloth/formats/peft.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;

/// Runs a check; an input Error of it becomes a problem of the result.
template <class Check>
void note_problem(Inspection& inspection, const Check& check) {
    try {
        check();
    } catch (const Error& error) {
        const std::string problem = error.what();
        const auto& known = inspection.problems;
        if (std::find(known.begin(), known.end(), problem) == known.end()) inspection.problems.push_back(problem);
    }
}

void add_tensor(Inspection& inspection, InspectedTensor tensor) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    inspection.parameters += elements;
    inspection.stored_bytes += tensor.bytes;
    ++inspection.kinds[tensor.dtype];
    inspection.tensors.push_back(std::move(tensor));
}

void add_plain(Inspection& inspection, const TensorView& tensor) {
    add_tensor(inspection,
               {tensor.name, std::string(safetensors_name(tensor.dtype)), tensor.shape, tensor.data.size()});
}

/// The names of all weights that have a quant_state.
std::set<std::string> quantised_names(const Checkpoint& checkpoint) {
    std::set<std::string> names;
    for (const std::string& name : checkpoint.names()) {
        std::string weight;
        if (name.find(".quant_state.") != std::string::npos && is_quant4_companion(name, &weight)) names.insert(weight);
    }
    return names;
}

/// Lists the 8-bit weights; returns the names of all tensors that they are made of.
std::set<std::string> list_int8(Inspection& inspection, const Checkpoint& checkpoint) {
    std::set<std::string> parts;
    for (const std::string& name : checkpoint.names()) {
        if (checkpoint.at(name).dtype != spec::DType::i8) continue;
        note_problem(inspection, [&] {
            const auto weight = find_int8(checkpoint, name);
            if (!weight) return;
            for (const TensorView* part : weight->parts()) parts.insert(part->name);
            add_tensor(inspection, {name, "int8", {weight->rows, weight->cols}, weight->stored_bytes()});
        });
    }
    return parts;
}

/// The same of MXFP4, whose parameters have no tensor of their own name.
std::set<std::string> list_mxfp4(Inspection& inspection, const Checkpoint& checkpoint) {
    std::set<std::string> parts;
    for (const std::string& name : checkpoint.names()) {
        if (!name.ends_with(mxfp4_blocks_suffix)) continue;
        const std::string parameter = name.substr(0, name.size() - mxfp4_blocks_suffix.size());
        const auto weight = find_mxfp4(checkpoint, parameter);
        if (!weight) continue;
        parts.insert({weight->blocks->name, weight->scales->name});
        const std::vector<int64_t>& shape = weight->blocks->shape;
        add_tensor(inspection, {parameter, "mxfp4", {shape[0], shape[1], weight->cols}, weight->stored_bytes()});
        note_problem(inspection, [&] { require_finite(parameter, *weight); });
    }
    return parts;
}

void list_tensors(Inspection& inspection, const Checkpoint& checkpoint) {
    const std::set<std::string> quantised = quantised_names(checkpoint);
    std::set<std::string> companions = list_int8(inspection, checkpoint);
    companions.merge(list_mxfp4(inspection, checkpoint));
    for (const std::string& name : checkpoint.names()) {
        std::string weight_name;
        if (companions.count(name) != 0 ||
            (is_quant4_companion(name, &weight_name) && quantised.count(weight_name) != 0))
            continue;
        if (quantised.count(name) == 0) {
            add_plain(inspection, checkpoint.at(name));
            note_problem(inspection, [&] { require_finite(checkpoint.at(name)); });
            continue;
        }
        note_problem(inspection, [&] {
            const auto weight = find_quant4(checkpoint, name);
            UNSLOTH_CHECK(weight.has_value(), name);
            add_tensor(inspection,
                       {name, name_of(weight->type), {weight->view.rows, weight->view.cols}, weight->stored_bytes()});
            ++inspection.quant_states_checked;
            require_finite(name, *weight);
        });
    }
}

void inspect_model(Inspection& inspection) {
    inspection.kind = "model";
    note_problem(inspection, [&] {
        const Checkpoint checkpoint = Checkpoint::open(inspection.path);
        note_problem(inspection, [&] { inspection.model = model_spec_of(checkpoint); });
        note_problem(inspection, [&] {
            const auto quantization = read_quantization_config(checkpoint.folder());
            if (inspection.model)
                check_quantization_config(quantization, *inspection.model,
                                          (checkpoint.folder() / "config.json").string());
        });
        list_tensors(inspection, checkpoint);
        if (inspection.model) note_problem(inspection, [&] { resolve_tensors(checkpoint, *inspection.model); });
    });
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += text.empty() ? word : ", " + word;
    return text;
}

void describe_adapter(Inspection& inspection, const PeftConfig& config) {
    const spec::LoraSpec& lora = config.lora;
    auto& facts = inspection.adapter;
    facts["base_model_name_or_path"] = config.base_model_name_or_path;
    facts["r"] = std::to_string(lora.r);
    facts["lora_alpha"] = cat(lora.lora_alpha);
    facts["lora_dropout"] = cat(lora.lora_dropout);
    facts["use_rslora"] = lora.use_rslora ? "true" : "false";
    facts["use_dora"] = lora.use_dora ? "true" : "false";
    if (lora.serve_grid != spec::ServeGrid::none) facts["serve_grid"] = name_of(lora.serve_grid);
    facts["target_modules"] = joined(lora.target_modules);
    if (!lora.target_parameters.empty()) facts["target_parameters"] = joined(lora.target_parameters);
    facts["modules_to_save"] = joined(lora.modules_to_save);
    facts["rank_pattern"] = cat(lora.rank_pattern.size(), " entries");
    facts["alpha_pattern"] = cat(lora.alpha_pattern.size(), " entries");
}

/// An adapter's tensors are checked against its base when the base is on this machine.
void check_against_base(Inspection& inspection, const fs::path& folder, const std::string& base) {
    const auto place = find_model_path(base, ModelFiles::all_but_weights);
    if (!place) return;  // adapters are handed around without their base
    const fs::path model_folder = fs::is_directory(*place) ? *place : place->parent_path();
    if (!fs::exists(model_folder / "config.json")) return;
    note_problem(inspection, [&] {
        inspection.model = read_model_spec(model_folder);
        read_adapter(folder, *inspection.model);
    });
}

void inspect_adapter(Inspection& inspection, const fs::path& folder) {
    inspection.kind = "adapter";
    note_problem(inspection, [&] {
        const SafetensorsFile file(folder / "adapter_model.safetensors");
        for (const TensorView& tensor : file.tensors()) {
            add_plain(inspection, tensor);
            note_problem(inspection, [&] { require_finite(tensor); });
        }
    });
    note_problem(inspection, [&] {
        const PeftConfig config = read_peft_config(folder);
        describe_adapter(inspection, config);
        if (!config.base_model_name_or_path.empty())
            check_against_base(inspection, folder, config.base_model_name_or_path);
    });
}

void inspect_gguf(Inspection& inspection, const fs::path& path) {
    inspection.kind = "gguf";
    note_problem(inspection, [&] {
        const GgufFile file(path);
        for (const GgufField& field : file.fields()) inspection.fields.emplace_back(field.key, field.summary());
        for (const GgufTensor& tensor : file.tensors())
            add_tensor(inspection, {tensor.name, std::string(tensor.type->name), tensor.shape, tensor.data.size()});
    });
}

}  // namespace

Inspection inspect_path(const std::string& path) {
    const fs::path place = resolve_model_path(path);
    Inspection inspection;
    inspection.path = path;
    if (fs::is_directory(place) && fs::exists(place / "adapter_config.json")) {
        inspect_adapter(inspection, place);
    } else if (fs::is_regular_file(place) && (place.extension() == ".gguf" || GgufFile::is_gguf(place))) {
        inspect_gguf(inspection, place);
    } else if (fs::is_regular_file(place) && place.extension() != ".safetensors") {
        throw Error("model.wrong-file-format", cat(path, ": neither a .safetensors nor a .gguf file"),
                    "inspect is for models and adapters; `unsloth-train data` shows rows of training data.");
    } else {
        inspect_model(inspection);
    }
    return inspection;
}

}  // namespace unsloth::formats
