#include "unsloth/formats/checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/formats/folder_contents.h"
#include "unsloth/hub/hub.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* adapter_file = "adapter_model.safetensors";

/// For a file that is no safetensors file.
std::string advice_on_file(const fs::path& file) {
    const Contents contents = describe_contents({file.filename().string()}, Sought::model, file.parent_path().string());
    return contents.advice.empty() ? "model.path is a model folder or a .safetensors file." : contents.advice;
}

/// weight_map of the index: tensor name to shard name. A shard must be next to its index, or nothing is read.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
    const auto json = parse_json<Json>(read_file(index), index.string());
    if (!json.is_object()) throw Error("checkpoint.bad-index", cat(index.string(), ": the file must be a JSON object"));
    const auto weight_map = json.find("weight_map");
    if (weight_map == json.end() || !weight_map->is_object())
        throw Error("checkpoint.bad-index",
                    cat(index.string(), ": weight_map: expected an object of tensor names and shard names"));
    std::map<std::string, std::string> shards;
    for (const auto& item : weight_map->items()) {
        if (!item.value().is_string())
            throw Error("checkpoint.bad-index",
                        cat(index.string(), ": weight_map.", item.key(), ": expected the name of a shard"));
        const auto& shard = item.value().get_ref<const std::string&>();
        if (shard.empty() || shard.find_first_of("/\\") != std::string::npos || shard.find("..") != std::string::npos ||
            shard.find('\0') != std::string::npos)
            throw Error("checkpoint.bad-index", cat(index.string(), ": weight_map.", item.key(), ": the shard name '",
                                                    shard, "' is refused: a shard is in the folder of its index"));
        if (!shard.ends_with(".safetensors"))
            throw Error(
                "checkpoint.bad-index",
                cat(index.string(), ": weight_map.", item.key(), ": the shard '", shard, "' is no .safetensors file"),
                advice_on_file(shard));
        shards.emplace(item.key(), shard);
    }
    return shards;
}

/// Which of a repository's files make up a model or an adapter: those at its top, because folders hold other programs'
/// files (original/, onnx/). Of several forms of the weights: the one that Checkpoint::open takes.
std::vector<std::string> model_files(const std::vector<std::string>& files, ModelFiles wanted) {
    const bool one_file = std::find(files.begin(), files.end(), single_file) != files.end();
    const auto is_weights = [&](const std::string& name) {
        if (wanted == ModelFiles::all_but_weights || !name.ends_with(".safetensors")) return false;
        if (name == single_file || name == adapter_file) return true;
        return !one_file && !name.starts_with("consolidated");  // Mistral's own form, next to the usual one
    };
    std::vector<std::string> kept;
    for (const std::string& name : files) {
        const bool template_file = name.starts_with("additional_chat_templates/") && name.ends_with(".jinja");
        if (name.find('/') != std::string::npos && !template_file) continue;
        if (name.ends_with(".json") || name.ends_with(".jinja") || name == "tokenizer.model" || name == "merges.txt" ||
            is_weights(name))
            kept.push_back(name);
    }
    return kept;
}

/// Files and folders at the top of a repository.
std::vector<std::string> at_top(const std::vector<std::string>& files) {
    std::set<std::string> names;
    for (const std::string& file : files) names.insert(file.substr(0, file.find('/') + 1));
    for (const std::string& file : files)
        if (file.find('/') == std::string::npos) names.insert(file);
    names.erase("");
    return {names.begin(), names.end()};
}

hub::Request request_for(const hub::Repository& repository, ModelFiles files) {
    const auto whole = [files](const fs::path& folder) {
        if (files == ModelFiles::all_but_weights) return fs::exists(folder / "config.json");
        if (fs::exists(folder / single_file) || fs::exists(folder / adapter_file)) return true;
        if (!fs::exists(folder / index_file)) return false;
        const auto shards = read_weight_map(folder / index_file);
        return std::all_of(shards.begin(), shards.end(),
                           [&](const auto& shard) { return fs::exists(folder / shard.second); });
    };
    const auto choose = [files, id = repository.id](const std::vector<std::string>& names) {
        const std::vector<std::string> kept = model_files(names, files);
        const auto is_weights = [](const std::string& name) { return name.ends_with(".safetensors"); };
        if (files == ModelFiles::all && std::none_of(kept.begin(), kept.end(), is_weights)) {
            const Contents contents = describe_contents(at_top(names), Sought::model, id);
            throw Error("model.incomplete", cat(id, ": no safetensors files: ", contents.what), contents.advice);
        }
        return kept;
    };
    return {repository, choose, whole};
}

}  // namespace

fs::path resolve_model_path(const std::string& path, ModelFiles files) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path;
    const auto repository = hub::parse_repository(hub::Kind::model, path);
    if (!repository)
        throw Error("model.not-found",
                    cat(path.empty() ? "the model path is empty" : path + ": no such file or folder"),
                    advice_on_missing(path));
    return hub::obtain(request_for(*repository, files));
}

std::optional<fs::path> find_model_path(const std::string& path, ModelFiles files) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path;
    const auto repository = hub::parse_repository(hub::Kind::model, path);
    return repository ? hub::find(request_for(*repository, files)) : std::nullopt;
}

Checkpoint Checkpoint::open(const std::string& path) {
    const fs::path place = resolve_model_path(path);
    Checkpoint checkpoint;
    if (!fs::is_directory(place)) {
        if (place.extension() == ".gguf")
            throw Error("model.wrong-file-format",
                        cat(place.string(), ": is a GGUF file, which is for llama.cpp and not read here"),
                        "Name the folder that it was made of (config.json, *.safetensors), or the model's id on "
                        "the Hugging Face hub.");
        if (place.extension() != ".safetensors")
            throw Error("model.wrong-file-format", cat(place.string(), ": not a .safetensors file"),
                        advice_on_file(place));
        checkpoint.folder_ = place.parent_path().empty() ? fs::path(".") : place.parent_path();
        checkpoint.files_.emplace_back(place);
        checkpoint.add_tensors_of(checkpoint.files_.back());
    } else {
        checkpoint.folder_ = place;
        if (fs::exists(place / single_file)) {
            checkpoint.files_.emplace_back(place / single_file);
            checkpoint.add_tensors_of(checkpoint.files_.back());
        } else if (fs::exists(place / index_file)) {
            checkpoint.open_shards(place / index_file);
        } else {
            throw missing_in(place, cat(single_file, " or ", index_file), Sought::model, path);
        }
    }
    for (const auto& [name, tensor] : checkpoint.tensors_) checkpoint.names_.push_back(name);
    return checkpoint;
}

Checkpoint Checkpoint::without_tensors(fs::path folder) {
    Checkpoint checkpoint;
    checkpoint.folder_ = std::move(folder);
    return checkpoint;
}

void Checkpoint::open_shards(const fs::path& index) {
    const auto weight_map = read_weight_map(index);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : weight_map) shards.insert(shard);
    files_.reserve(shards.size());
    for (const std::string& shard : shards) {
        const fs::path path = folder_ / shard;
        std::error_code unreadable;  // reported in better words below, or by the code that opens the file
        if (!fs::exists(path, unreadable))
            throw Error("model.incomplete",
                        cat(path.string(), ": this shard is missing (", index.string(), " names it)"),
                        "Download the model again.");
        files_.emplace_back(path);
        add_tensors_of(files_.back());
    }
    for (const auto& [name, shard] : weight_map) {
        const TensorView* const tensor = find(name);
        if (tensor == nullptr || tensor->file->path().filename() != shard)
            throw Error(
                "checkpoint.bad-index",
                cat(index.string(), ": tensor '", name, "' should be in ", shard, ", but ",
                    tensor == nullptr ? "is in no shard" : "is in " + tensor->file->path().filename().string()));
    }
}

void Checkpoint::add_tensors_of(const SafetensorsFile& file) {
    for (const TensorView& tensor : file.tensors()) {
        const auto [it, is_new] = tensors_.emplace(tensor.name, &tensor);
        if (!is_new)
            throw Error("checkpoint.bad-index", cat(file.path().string(), ": tensor '", tensor.name, "' is also in ",
                                                    it->second->file->path().string()));
        total_bytes_ += tensor.data.size();
    }
}

const TensorView* Checkpoint::find(std::string_view name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : it->second;
}

const TensorView& Checkpoint::at(std::string_view name) const {
    const TensorView* const tensor = find(name);
    if (tensor == nullptr)
        throw Error("checkpoint.missing-tensor", cat(folder_.string(), ": tensor '", name, "' is missing"));
    return *tensor;
}

}  // namespace unsloth::formats
