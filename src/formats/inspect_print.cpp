#include <algorithm>
#include <tuple>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/inspect.h"

namespace unsloth::formats {
namespace {

std::string grouped_digits(int64_t value) {
    const std::string digits = std::to_string(value);
    std::string text;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i != 0 && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

/// The name with its layer's number replaced by '*', so that the layers of a model print as one line.
std::string name_pattern(const std::string& name) {
    std::size_t first = std::string::npos;
    for (const std::string_view marker : {"layers.", "blk."})  // checkpoints', GGUF's
        if (const auto start = name.find(marker); start != std::string::npos) first = start + marker.size();
    if (first == std::string::npos) return name;
    const auto last = name.find_first_not_of("0123456789", first);
    if (last == first || last == std::string::npos) return name;
    return cat(name.substr(0, first), "*", name.substr(last));
}

struct TensorGroup {
    std::string pattern, dtype, shape;
    int64_t count = 0;
    std::size_t bytes = 0;
};

std::vector<TensorGroup> group_tensors(const std::vector<InspectedTensor>& tensors) {
    std::vector<TensorGroup> groups;
    std::map<std::tuple<std::string, std::string, std::string>, std::size_t> index;
    for (const InspectedTensor& tensor : tensors) {
        const auto key = std::tuple(name_pattern(tensor.name), tensor.dtype, shape_text(tensor.shape));
        const auto [it, is_new] = index.emplace(key, groups.size());
        if (is_new) groups.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key)});
        ++groups[it->second].count;
        groups[it->second].bytes += tensor.bytes;
    }
    return groups;
}

std::string model_text(const spec::ModelSpec& model) {
    std::string text =
        cat("architecture  ", model.model_type, ": ", model.num_layers, " layers, hidden ", model.hidden_size,
            ", intermediate ", model.intermediate_size, ", ", model.num_heads, " heads / ", model.num_kv_heads,
            " kv of ", model.head_dim, ", vocabulary ", model.vocab_size, ", up to ", model.max_position_embeddings,
            " positions", model.tie_word_embeddings ? ", tied embeddings" : "", model.qkv_bias ? ", biases" : "",
            model.qk_norm ? ", q/k norm" : "");
    const auto layer =
        std::ranges::find_if(model.layers, [](const spec::LayerSpec& layer) { return layer.window > 0; });
    if (layer != model.layers.end()) text += cat(", sliding window ", layer->window);
    if (const auto& experts = model.experts)
        text += cat(", ", experts->top_k, " of ", experts->count, " experts of ", experts->intermediate_size);
    return text + "\n";
}

Json model_json(const spec::ModelSpec& model) {
    Json windows = Json::array();
    for (const spec::LayerSpec& layer : model.layers) windows.push_back(layer.window);
    return {{"model_type", model.model_type},
            {"num_hidden_layers", model.num_layers},
            {"hidden_size", model.hidden_size},
            {"intermediate_size", model.intermediate_size},
            {"num_attention_heads", model.num_heads},
            {"num_key_value_heads", model.num_kv_heads},
            {"head_dim", model.head_dim},
            {"vocab_size", model.vocab_size},
            {"max_position_embeddings", model.max_position_embeddings},
            {"tie_word_embeddings", model.tie_word_embeddings},
            {"sliding_window", std::move(windows)},
            {"dtype", spec::name_of(model.dtype)}};
}

}  // namespace

std::string inspect_text(const Inspection& inspection) {
    std::string text = cat("path          ", inspection.path, "\nkind          ", inspection.kind, "\n");
    if (inspection.model) text += model_text(*inspection.model);
    for (const auto& [key, value] : inspection.adapter) text += cat(key, ": ", value, "\n");
    for (const auto& [key, value] : inspection.fields) text += cat(key, ": ", value, "\n");
    text += cat("parameters    ", grouped_digits(inspection.parameters), "\nstored        ",
                human_size(static_cast<int64_t>(inspection.stored_bytes)), "\ntensors       ",
                inspection.tensors.size(), ":");
    for (const auto& [kind, count] : inspection.kinds) text += cat(" ", count, " ", kind);
    text += "\n";
    for (const TensorGroup& group : group_tensors(inspection.tensors))
        text += cat("  ", group.pattern, "  ", group.dtype, " ", group.shape,
                    group.count > 1 ? cat(" x ", group.count) : "", "  ", human_size(static_cast<int64_t>(group.bytes)),
                    "\n");
    if (inspection.kind == "model") text += cat("quant_states  ", inspection.quant_states_checked, " checked\n");
    text += cat("problems      ", inspection.ok() ? "none" : std::to_string(inspection.problems.size()), "\n");
    for (const std::string& problem : inspection.problems) text += cat("  - ", problem, "\n");
    return text;
}

std::string inspect_json(const Inspection& inspection) {
    Json tensors = Json::array();
    for (const InspectedTensor& tensor : inspection.tensors)
        tensors.push_back(
            {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
    Json fields = Json::object();
    for (const auto& [key, value] : inspection.fields) fields[key] = value;
    const Json json = {{"path", inspection.path},
                       {"kind", inspection.kind},
                       {"ok", inspection.ok()},
                       {"model", inspection.model ? model_json(*inspection.model) : Json(nullptr)},
                       {"adapter", inspection.adapter.empty() ? Json(nullptr) : Json(inspection.adapter)},
                       {"fields", inspection.fields.empty() ? Json(nullptr) : std::move(fields)},
                       {"parameters", inspection.parameters},
                       {"stored_bytes", inspection.stored_bytes},
                       {"kinds", inspection.kinds},
                       {"quant_states_checked", inspection.quant_states_checked},
                       {"tensors", std::move(tensors)},
                       {"problems", inspection.problems}};
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace unsloth::formats
