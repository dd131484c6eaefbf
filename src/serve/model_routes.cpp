// The routes about models and adapters.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "serve/call.h"
#include "serve/prompts.h"
#include "unsloth/core/error.h"
#include "unsloth/openai/request.h"
#include "unsloth/serve/service.h"

namespace unsloth::serve {
namespace {

using Json = nlohmann::ordered_json;
using openai::ApiError;
namespace fs = std::filesystem;

Json card(const std::string& id, const std::string& root, const std::string& parent, int64_t created, int64_t context) {
    return {{"id", id},
            {"object", "model"},
            {"created", created},
            {"owned_by", "unsloth"},
            {"root", root},
            {"parent", parent.empty() ? Json(nullptr) : Json(parent)},
            {"max_model_len", context}};
}

/// The folder that a path means: below `root`, with links followed.
std::string folder_below(const std::string& root, const std::string& path) {
    std::error_code failed;
    const fs::path allowed = fs::canonical(root, failed);
    const fs::path asked = failed ? fs::path() : fs::weakly_canonical(allowed / path, failed);
    const auto inside = [&] {
        const fs::path relative = asked.lexically_relative(allowed);
        return !relative.empty() && *relative.begin() != "..";
    };
    if (failed || !inside())
        throw ApiError(403, "'lora_path' is not below the service's --adapter_root.", "lora_path", "path_not_allowed");
    if (!fs::is_directory(asked, failed))
        throw ApiError(404, "'lora_path' names no folder below --adapter_root.", "lora_path", "adapter_not_found");
    return asked.string();
}

}  // namespace

Json Service::model_cards() const {
    Json cards = Json::array({card(options_.model, options_.model, "", created_, engine_.context())});
    for (const auto& adapter : adapters_.all())
        cards.push_back(card(adapter->name, adapter->folder, options_.model, adapter->created, engine_.context()));
    return cards;
}

void Service::models(const Call& call) {
    call.send(200, Json{{"object", "list"}, {"data", model_cards()}}.dump());
}

void Service::one_model(const Call& call) {
    constexpr std::string_view prefix = "/v1/models/";
    const std::string id = call.request.path.substr(prefix.size());
    if (id == options_.model) return call.send(200, card(id, id, "", created_, engine_.context()).dump());
    const auto adapter = adapters_.find(id);
    if (!adapter)
        throw ApiError(404, cat("The model '", id.substr(0, 200), "' does not exist."), "model", "model_not_found");
    call.send(200, card(id, adapter->folder, options_.model, adapter->created, engine_.context()).dump());
}

void Service::require_adapter_routes() const {
    if (!options_.may_load_adapters)
        throw ApiError(403, "Adapters are loaded by clients only on a loopback address or with --api_key_file.", "",
                       "adapter_routes_off");
    if (options_.adapter_root.empty())
        throw ApiError(403, "Start the service with --adapter_root DIR to load adapters from there.", "",
                       "adapter_routes_off");
}

void Service::load(const openai::AdapterRequest& request) {
    if (request.name == options_.model)
        throw ApiError(400, cat("'", request.name, "' is the base model's name."), "lora_name", "name_in_use");
    if (adapters_.find(request.name) && !request.load_inplace)
        throw ApiError(
            400, cat("The adapter '", request.name, "' is loaded already. Set 'load_inplace': true to ", "replace it."),
            "lora_name", "already_loaded");
    adapters_.load(request.name, folder_below(options_.adapter_root, request.path),
                   [this](std::function<void()> work) { engine_.between_passes(std::move(work)); });
}

void Service::unload(const openai::AdapterRequest& request) {
    if (!adapters_.unload(request.name))
        throw ApiError(404, cat("The adapter '", request.name.substr(0, 200), "' is not loaded."), "lora_name",
                       "adapter_not_found");
}

void Service::load_adapter(const Call& call) {
    require_adapter_routes();
    const openai::AdapterRequest request = openai::parse_load_adapter(call.request.body, parsing());
    load(request);
    call.send(200, cat("Success: LoRA adapter '", request.name, "' added successfully."), "text/plain");
}

void Service::unload_adapter(const Call& call) {
    require_adapter_routes();
    const openai::AdapterRequest request = openai::parse_unload_adapter(call.request.body, parsing());
    unload(request);
    call.send(200, cat("Success: LoRA adapter '", request.name, "' removed successfully."), "text/plain");
}

}  // namespace unsloth::serve
