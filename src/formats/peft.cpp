#include "unsloth/formats/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "formats/json.h"
#include "formats/peft_experts.h"
#include "formats/peft_names.h"
#include "formats/problem_list.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/folder_contents.h"
#include "unsloth/formats/serve_grid.h"

namespace unsloth::formats {
namespace {

constexpr const char* config_file = "adapter_config.json";
constexpr const char* weights_file = "adapter_model.safetensors";
constexpr const char* base_key = "unsloth_base";

/// Options of PEFT that change what an adapter computes or which weights it has. Absent, null, false and empty mean
/// off.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> refused_options = {{
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "block-diagonal LoRA"},
    {"lora_bias", "biases on lora_B"},
    {"fan_in_fan_out", "transposed weights"},
    {"layer_replication", "replicated layers"},
    {"trainable_token_indices", "single trainable tokens"},
    {"exclude_modules", "excluded modules"},
    {"alora_invocation_tokens", "activated LoRA"},
    {"arrow_config", "Arrow routing"},
    {"kasa_config", "KaSA"},
    {"monteclora_config", "MonteCLoRA"},
    {"velora_config", "VeLoRA"},
    {"megatron_config", "Megatron layers"},
    {"ensure_weight_tying", "tied copies of modules_to_save"},
    {"layers_pattern", "a pattern for the layers' name"},
}};

/// Keys that are read here, or that say nothing about what a finished adapter computes.
constexpr std::array<std::string_view, 28> known_options = {"peft_type",
                                                            "serve_grid",
                                                            "rope_scaling",
                                                            "task_type",
                                                            "bias",
                                                            "r",
                                                            "lora_alpha",
                                                            "lora_dropout",
                                                            "use_rslora",
                                                            "use_dora",
                                                            "target_modules",
                                                            "target_parameters",
                                                            "rank_pattern",
                                                            "alpha_pattern",
                                                            "modules_to_save",
                                                            "layers_to_transform",
                                                            "init_lora_weights",
                                                            "base_model_name_or_path",
                                                            "auto_mapping",
                                                            "revision",
                                                            "inference_mode",
                                                            "peft_version",
                                                            "loftq_config",
                                                            "eva_config",
                                                            "corda_config",
                                                            "lora_ga_config",
                                                            "megatron_core",
                                                            "qalora_group_size"};

bool is_off(const OrderedJson& value) {
    if (value.is_boolean()) return !value.get<bool>();
    if (value.is_number()) return value.get<double>() == 0.0;
    if (value.is_string()) return value == "";
    return value.empty();  // null, [], {}
}

void refuse_options(const JsonReader& json) {
    const auto type = json.string("peft_type");
    if (type != "LORA") json["peft_type"].refuse("\"LORA\" (other adapter types are not supported)");
    if (json.string("task_type").value_or("CAUSAL_LM") != "CAUSAL_LM") json["task_type"].refuse("\"CAUSAL_LM\"");
    if (json.has("bias") && json["bias"].value() != "none")
        json["bias"].refuse("\"none\" (trained biases are not supported)");
    for (const auto& [key, meaning] : refused_options) {
        const OrderedJson& value = json[key].value();
        if (!is_off(value) && !(key == "layers_pattern" && value == "layers"))
            json[key].refuse(cat("nothing (", meaning, " is not supported)"));
    }
    for (const auto& item : json.value().items()) {
        const std::string& key = item.key();
        const auto refused = [&](const auto& option) { return option.first == key; };
        if (std::find(known_options.begin(), known_options.end(), key) == known_options.end() &&
            std::none_of(refused_options.begin(), refused_options.end(), refused) && !is_off(item.value()))
            json[key].refuse("nothing (this option of a later PEFT, or of another program, is not known)");
    }
    // These initialisations changed the base weights when the adapter was made: on the plain base it would be wrong.
    const OrderedJson& init = json["init_lora_weights"].value();
    if (!init.is_string()) return;
    std::string name = init.get<std::string>();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const std::string_view known : {"gaussian", "eva", "orthogonal"})
        if (name == known) return;
    json["init_lora_weights"].refuse("an initialisation that leaves the base weights as they are");
}

void read_targets(const JsonReader& json, spec::LoraSpec& lora) {
    if (!json.has("target_modules")) json["target_modules"].refuse("a list of modules");
    const OrderedJson& targets = json["target_modules"].value();
    if (!targets.is_string()) {
        lora.target_modules = json.strings("target_modules");
    } else if (targets == "all-linear") {
        lora.target_modules.assign(spec::projection_names.begin(),
                                   spec::projection_names.begin() + spec::separate_projections);
    } else {
        lora.target_modules = {targets.get<std::string>()};
        lora.target_is_regex = true;
    }
}

void read_patterns(const JsonReader& json, spec::LoraSpec& lora) {
    if (const auto ranks = json.object("rank_pattern"))
        for (const auto& item : ranks->value().items())
            lora.rank_pattern.emplace_back(item.key(), (*ranks)[item.key()].integer());
    if (const auto alphas = json.object("alpha_pattern"))
        for (const auto& item : alphas->value().items()) {
            const auto alpha = alphas->number(item.key());
            if (!alpha) (*alphas)[item.key()].refuse("a finite number");
            lora.alpha_pattern.emplace_back(item.key(), *alpha);
        }
}

/// PEFT writes a whole number without a decimal point when the user gave one so: alpha is usually such.
OrderedJson number_json(double value) {
    if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<int64_t>(value);
    return value;
}

/// A list on one line, as the files of PEFT 0.21 have it: nlohmann's indented form puts each item on its own.
std::string list_text(const OrderedJson& list) {
    std::string text = "[";
    for (std::size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + list[i].dump();
    return text + "]";
}

/// An object of numbers, indented to stand at the top level. Its keys stay in their order: sorted, another pattern
/// could match first when the file is read again.
template <class Value>
std::string pattern_text(const std::vector<std::pair<std::string, Value>>& pattern) {
    if (pattern.empty()) return "{}";
    std::string text = "{";
    for (std::size_t i = 0; i < pattern.size(); ++i)
        text += cat(i == 0 ? "" : ",", "\n    ", OrderedJson(pattern[i].first).dump(), ": ",
                    number_json(static_cast<double>(pattern[i].second)).dump());
    return text + "\n  }";
}

std::string texts_or_null(std::vector<std::string> values, bool sorted) {
    if (values.empty()) return "null";
    if (sorted) std::sort(values.begin(), values.end());
    return list_text(values);
}

std::string targets_text(const spec::LoraSpec& lora) {
    if (lora.target_is_regex) return OrderedJson(lora.target_modules.at(0)).dump();
    return texts_or_null(lora.target_modules, true);  // PEFT keeps them as a set
}

constexpr std::array<const char*, 2> vocabulary_modules = {"embed_tokens", "lm_head"};

/// Tokens that such a module of the model has a row for.
int64_t rows_of(std::string_view module, const spec::ModelSpec& model) {
    return module == "lm_head" ? model.vocab_size : model.embedding_rows();
}

/// Embeddings of another number of tokens than the base's say more than a list of tensors that do not fit.
void require_same_vocabulary(const SafetensorsFile& file, const spec::ModelSpec& model) {
    for (const char* const module : vocabulary_modules) {
        const TensorView* const tensor = file.find(saved_module_name(module, model.stem()));
        if (tensor == nullptr || tensor->shape.size() != 2 || tensor->shape[1] != model.hidden_size ||
            tensor->shape[0] == rows_of(module, model))
            continue;
        const bool enlarged = tensor->shape[0] > rows_of(module, model);
        throw Error(
            "adapter.vocabulary-size",
            cat(file.path().string(), ": the vocabulary was ", enlarged ? "enlarged" : "cut", " from ",
                rows_of(module, model), " to ", tensor->shape[0], " tokens for this adapter, and the base has ",
                rows_of(module, model), " (", tensor->name, ")"),
            cat("In Python: base.resize_token_embeddings(", tensor->shape[0],
                "), PeftModel.from_pretrained(base, ADAPTER).merge_and_unload().save_pretrained(OUT); then name OUT as "
                "model.path."));
    }
}

void check_tensors(const SafetensorsFile& file, std::vector<TensorDecl> expected, const spec::ModelSpec& model) {
    require_same_vocabulary(file, model);
    for (const char* const module : vocabulary_modules) {
        const std::string name = saved_module_name(module, model.stem());
        const bool listed = std::ranges::any_of(expected, [&](const TensorDecl& decl) { return decl.name == name; });
        if (!listed && file.find(name) != nullptr)
            expected.push_back({name, spec::DType::f32, {rows_of(module, model), model.hidden_size}});
    }
    TensorProblems problems;
    std::set<std::string> known;
    for (const TensorDecl& decl : expected) {
        known.insert(decl.name);
        const TensorView* const tensor = file.find(decl.name);
        if (tensor == nullptr) {
            problems.missing.add(cat(decl.name, " ", shape_text(decl.shape)));
        } else if (tensor->shape != decl.shape ||
                   (tensor->dtype != spec::DType::f32 && tensor->dtype != spec::DType::bf16 &&
                    tensor->dtype != spec::DType::f16)) {
            problems.unusable.add(cat(decl.name, ": expected F32, BF16 or F16 ", shape_text(decl.shape), ", found ",
                                      safetensors_name(tensor->dtype), " ", shape_text(tensor->shape)));
        }
    }
    for (const TensorView& tensor : file.tensors())
        if (known.count(tensor.name) == 0) problems.unknown.add(cat(tensor.name, " ", shape_text(tensor.shape)));
    problems.throw_if_any(file.path().string(),
                          "The adapter must have been trained on this base model with this adapter_config.json.");
}

}  // namespace

PeftConfig parse_peft_config(const std::string& json_text, const std::string& source) {
    const auto parsed = parse_json<OrderedJson>(json_text, source);
    const JsonReader json(parsed, source);
    refuse_options(json);
    PeftConfig config;
    spec::LoraSpec& lora = config.lora;
    config.base_model_name_or_path = json.string("base_model_name_or_path").value_or("");
    lora.r = json.integer("r").value_or(8);  // LoraConfig's defaults
    lora.lora_alpha = json.number("lora_alpha").value_or(8.0);
    lora.lora_dropout = json.number("lora_dropout").value_or(0.0);
    lora.use_rslora = json.boolean("use_rslora").value_or(false);
    lora.use_dora = json.boolean("use_dora").value_or(false);
    if (const auto grid = json.string(serve_grid_key)) lora.serve_grid = read_grid(*grid, source);
    if (json.has("rope_scaling")) config.rope_scaling = json["rope_scaling"].value().dump();
    lora.target_parameters = json.strings("target_parameters");
    read_targets(json, lora);
    read_patterns(json, lora);
    lora.modules_to_save = json.strings("modules_to_save");
    lora.layers_to_transform = json.integers("layers_to_transform");
    lora.tower = spec::TowerTargets::named;
    return config;
}

PeftConfig read_peft_config(const std::filesystem::path& folder) {
    const auto path = folder / config_file;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(folder, ignored))
        throw Error(
            "adapter.not-a-folder",
            cat(folder.string(), ": is a file, and an adapter is a folder of ", config_file, " and ", weights_file),
            cat("Name the folder", folder.extension() == ".gguf" ? " that it was made of." : "."));
    if (std::filesystem::is_directory(folder, ignored) && !std::filesystem::exists(path, ignored))
        throw missing_in(folder, config_file, Sought::adapter, folder.string());
    return parse_peft_config(read_file(path), path.string());
}

SafetensorsWriter::Metadata adapter_metadata(const PeftConfig& config) {
    SafetensorsWriter::Metadata metadata{{"format", "pt"}};
    if (!config.base_mark.empty()) metadata[base_key] = config.base_mark;
    return metadata;
}

std::string write_peft_config(const PeftConfig& config) {
    const spec::LoraSpec& lora = config.lora;
    const auto quoted = [](const std::string& text) { return OrderedJson(text).dump(-1, ' ', true); };
    // Sorted by key; what this program does not use is as PEFT 0.21 writes it for a plain LoRA.
    std::vector<std::pair<const char*, std::string>> entries = {
        {"alora_invocation_tokens", "null"},
        {"alpha_pattern", pattern_text(lora.alpha_pattern)},
        {"arrow_config", "null"},
        {"auto_mapping", "null"},
        {"base_model_name_or_path", quoted(config.base_model_name_or_path)},
        {"bias", "\"none\""},
        {"corda_config", "null"},
        {"ensure_weight_tying", "false"},
        {"eva_config", "null"},
        {"exclude_modules", "null"},
        {"fan_in_fan_out", "false"},
        {"inference_mode", "true"},
        {"init_lora_weights", "true"},
        {"kasa_config", "null"},
        {"layer_replication", "null"},
        {"layers_pattern", "null"},
        {"layers_to_transform", lora.layers_to_transform.empty() ? "null" : list_text(lora.layers_to_transform)},
        {"loftq_config", "{}"},
        {"lora_alpha", number_json(lora.lora_alpha).dump()},
        {"lora_bias", "false"},
        {"lora_dropout", OrderedJson(lora.lora_dropout).dump()},
        {"lora_ga_config", "null"},
        {"megatron_config", "null"},
        {"megatron_core", "\"megatron.core\""},
        {"modules_to_save", texts_or_null(lora.modules_to_save, false)},
        {"monteclora_config", "null"},
        {"peft_type", "\"LORA\""},
        {"peft_version", "\"0.21.2\""},
        {"qalora_group_size", "16"},
        {"r", std::to_string(lora.r)},
        {"rank_pattern", pattern_text(lora.rank_pattern)},
        {"revision", "null"},
        {"target_modules", targets_text(lora)},
        {"target_parameters", texts_or_null(lora.target_parameters, false)},
        {"task_type", "\"CAUSAL_LM\""},
        {"trainable_token_indices", "null"},
        {"use_bdlora", "null"},
        {"use_dora", lora.use_dora ? "true" : "false"},
        {"use_qalora", "false"},
        {"use_rslora", lora.use_rslora ? "true" : "false"},
        {"velora_config", "null"},
    };
    const auto insert = [&](std::string_view key, const std::string& value) {
        const auto after = std::ranges::find_if(entries, [&](const auto& entry) { return entry.first > key; });
        entries.insert(after, {key.data(), value});
    };
    if (!config.rope_scaling.empty()) insert("rope_scaling", config.rope_scaling);
    if (lora.serve_grid != spec::ServeGrid::none) insert(serve_grid_key, quoted(name_of(lora.serve_grid)));
    std::string text = "{";
    for (std::size_t i = 0; i < entries.size(); ++i)
        text += cat(i == 0 ? "" : ",", "\n  \"", entries[i].first, "\": ", entries[i].second);
    return text + "\n}\n";
}

std::vector<TensorDecl> adapter_tensors(const spec::LoraSpec& lora, const spec::ModelSpec& model, spec::DType dtype) {
    std::vector<TensorDecl> tensors;
    const auto layers = spec::resolve_lora(lora, model);
    for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
        for (const spec::Projection p : model.adaptable_of(layer)) {
            const spec::LinearId id{layer, p};
            const spec::LayerLora& adapted = layers[static_cast<std::size_t>(layer)];
            const spec::LoraModule& module = adapted[p];
            if (module.r == 0) continue;
            const int64_t r = (is_of_experts(p) ? model.experts->count : 1) * module.r;
            const bool within = adapted.is_within(p), crosses = adapted.crosses;
            tensors.push_back({lora_a_name(id, model.stem(), within, crosses), dtype, {r, model.in_features(p)}});
            tensors.push_back({lora_b_name(id, model.stem(), within, crosses), dtype, {model.out_features(p), r}});
            if (module.dora)
                tensors.push_back({magnitude_name(id, model.stem(), crosses), dtype, {model.out_features(p)}});
        }
    }
    for (const spec::TowerLora& linear : spec::resolve_tower_lora(lora, model)) {
        tensors.push_back({tower_lora_a_name(linear), dtype, {linear.lora.r, linear.k}});
        tensors.push_back({tower_lora_b_name(linear), dtype, {linear.n, linear.lora.r}});
    }
    for (const std::string& module : lora.modules_to_save)
        tensors.push_back(
            {saved_module_name(module, model.stem()), dtype, {rows_of(module, model), model.hidden_size}});
    return tensors;
}

const TensorView* Adapter::stand_in(const std::string& module) const {
    const auto& saved = config.lora.modules_to_save;
    return std::ranges::find(saved, module) == saved.end() ? file.find(saved_module_name(module, stem)) : nullptr;
}

void Adapter::refuse_stand_ins(const std::string& use, const std::string& advice) const {
    for (const char* const module : vocabulary_modules)
        if (const TensorView* const tensor = stand_in(module))
            throw Error("adapter.unsupported",
                        cat(file.path().string(), ": stores the model's ", module, " (", tensor->name, "), ", use),
                        advice);
}

Adapter read_adapter(const std::filesystem::path& folder, const spec::ModelSpec& model) {
    PeftConfig config = read_peft_config(folder);
    if (!std::filesystem::exists(folder / weights_file))
        throw missing_in(folder, weights_file, Sought::adapter, folder.string());
    SafetensorsFile file(folder / weights_file);
    std::vector<spec::LayerLora> layers;
    std::vector<spec::TowerLora> tower;
    std::vector<TensorDecl> expected;
    take_older_names(file, model);
    join_experts(config, file, model);
    try {
        layers = spec::resolve_lora(config.lora, model);
        tower = spec::resolve_tower_lora(config.lora, model);
        expected = adapter_tensors(config.lora, model);
    } catch (const Error& error) {  // here the words are the adapter's, not the user's options
        throw Error("adapter.bad-config", cat((folder / config_file).string(), ": ", error.what()));
    }
    check_tensors(file, std::move(expected), model);
    if (const auto mark = file.metadata().find(base_key); mark != file.metadata().end())
        config.base_mark = mark->second;
    return {std::move(config), std::move(layers), std::move(file), std::string(model.stem()), std::move(tower)};
}

}  // namespace unsloth::formats
