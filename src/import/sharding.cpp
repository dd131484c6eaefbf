// What FSDP and DeepSpeed shard over ranks. None of it changes the training result, so that nothing here is a loss.
#include <algorithm>
#include <map>
#include <sstream>

#include "import/importer.h"
#include "unsloth/config/read_tree.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

constexpr const char* equivalents = "docs/how-to/migrate/fsdp-and-deepspeed.md has what ranks share here";

/// What of a run's state ranks keep a part of, and where.
struct Sharding {
    int stage = -1;  ///< of ZeRO; -1: not said
    bool offloads = false;
    bool recomputes = false;
};

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

/// "full_shard auto_wrap", in FSDP's words or in those of fsdp_config.
bool read_strategy(const std::string& word, Sharding& sharding) {
    static const std::map<std::string, int> stages = {
        {"full_shard", 3}, {"hybrid_shard", 3}, {"shard_grad_op", 2}, {"hybrid_shard_zero2", 2}, {"no_shard", 0}};
    const auto found = stages.find(lower(word));
    if (found != stages.end()) sharding.stage = found->second;
    if (lower(word) == "offload") sharding.offloads = true;
    return found != stages.end() || lower(word) == "offload" || lower(word) == "auto_wrap";
}

/// Members of fsdp_config, which earlier releases wrote with "fsdp_" in front.
void read_fsdp_config(Importer& importer, const Json& config, Sharding& sharding) {
    // How weights are loaded, wrapped and gathered.
    static const std::vector<std::string> harmless = {"auto_wrap_policy",
                                                      "transformer_layer_cls_to_wrap",
                                                      "min_num_params",
                                                      "cpu_ram_efficient_loading",
                                                      "limit_all_gathers",
                                                      "sync_module_states",
                                                      "use_orig_params",
                                                      "state_dict_type",
                                                      "final_state_dict_type",
                                                      "backward_prefetch",
                                                      "forward_prefetch",
                                                      "backward_prefetch_policy",
                                                      "version",
                                                      "cpu_offload_pin_memory",
                                                      "xla",
                                                      "mixed_precision_policy"};
    for (const auto& [key, value] : config.items()) {
        const std::string name = key.starts_with("fsdp_") ? key.substr(5) : key;
        if (name == "sharding_strategy" && value.is_string())
            (void)read_strategy(value, sharding);
        else if (name == "reshard_after_forward" && value.is_boolean())
            sharding.stage = value == true ? 3 : 2;
        else if (name == "reshard_after_forward" && value.is_string())
            (void)read_strategy(value, sharding);
        else if (name == "offload_params")
            sharding.offloads = value == true;
        else if (name == "activation_checkpointing")
            sharding.recomputes = value == true;
        else if (std::find(harmless.begin(), harmless.end(), name) == harmless.end())
            importer.leave(cat("fsdp_config.", key), cat(shown(value), ": ", equivalents));
    }
    if (sharding.stage < 0) sharding.stage = 3;  // FSDP's default
}

bool is_on_cpu(const Json& zero, const char* key) {
    const Json place = zero.value(key, Json::object());
    return place.is_object() && place.value("device", Json("none")) != "none";
}

/// A DeepSpeed configuration.
void read_deepspeed(Importer& importer, const Json& file, Sharding& sharding) {
    Json zero = file.value("zero_optimization", Json::object());
    if (!zero.is_object()) zero = Json::object();
    if (const Json stage = zero.value("stage", Json(0)); stage.is_number_integer())
        sharding.stage = std::clamp(stage.get<int>(), 0, 3);
    sharding.offloads = is_on_cpu(zero, "offload_optimizer") || zero.value("cpu_offload", Json(false)) == true;
    if (is_on_cpu(zero, "offload_param"))
        importer.leave("deepspeed.zero_optimization.offload_param",
                       "of a frozen base model.device_map says which layers are in host memory");
    if (const Json most = file.value("gradient_clipping", Json("auto")); most.is_number())
        importer.set("deepspeed.gradient_clipping", "training.max_grad_norm", most);
    for (const char* key : {"optimizer", "scheduler"})
        if (file.contains(key))
            importer.lose(cat("deepspeed.", key), cat(shown(file[key]), ": section training says it here"));
}

/// Of a file of these programs' own, such as zero3_bf16.json or ds_z2_offload_config.json; -1: it is none.
void read_known_name(const std::string& path, Sharding& sharding) {
    const std::string name = std::filesystem::path(path).stem().string();
    for (const char* front : {"zero", "ds_z"})
        if (name.starts_with(front) && name.size() > 4 && name[4] >= '0' && name[4] <= '3') {
            sharding.stage = name[4] - '0';
            sharding.offloads = name.find("offload") != std::string::npos && name.find("params") == std::string::npos;
        }
}

void write(Importer& importer, const std::string& key, const Sharding& sharding) {
    if (sharding.stage < 0) return;
    const bool samples = config::samples_completions(importer.config().training.objective);
    const int stage = samples ? std::min(sharding.stage, 2) : sharding.stage;
    importer.set(key, "distributed.zero_stage", stage);
    importer.note(key, cat("distributed.zero_stage is ", stage, ", for a run of several GPUs",
                           stage < sharding.stage ? "; a rank that samples completions needs all values" : ""));
    if (sharding.offloads && stage > 0) importer.set(key, "distributed.offload_optimizer", "cpu");
    if (sharding.offloads && stage == 0)
        importer.leave(key,
                       "offload without shards: distributed.offload_optimizer cpu puts the optimizer into host memory");
    if (sharding.recomputes && !importer.is_set("training.gradient_checkpointing"))
        importer.set(key, "training.gradient_checkpointing", "full");
}

void import_fsdp(Importer& importer) {
    const auto strategy = importer.take("fsdp"), config = importer.take("fsdp_config");
    const auto version = importer.take("fsdp_version"), state = importer.take("fsdp_final_state_dict_type");
    const auto ranks = importer.take("dp_shard_size");
    Sharding sharding;
    const auto read = [&](const std::string& word) {
        if (!read_strategy(word, sharding)) importer.leave("fsdp", cat(word, ": ", equivalents));
    };
    if (strategy && *strategy == true) sharding.stage = 3;  // transformers reads it as full_shard
    if (strategy && strategy->is_array())
        for (const Json& word : *strategy) read(shown(word));
    if (strategy && strategy->is_string()) {
        std::istringstream words(strategy->get<std::string>());
        for (std::string word; words >> word;) read(word);
    }
    const bool named = config && config->is_string() && *config != "";
    const std::filesystem::path file = named ? importer.find_file(config->get<std::string>()) : std::filesystem::path();
    const Json members = !named ? config.value_or(Json()) : file.empty() ? Json() : config::read_tree(file);
    if (named && !members.is_object())
        importer.leave("fsdp_config", cat(shown(*config), " is not here: ", equivalents));
    const bool configured = members.is_object() && !members.empty();
    if (configured) read_fsdp_config(importer, members, sharding);
    if ((sharding.offloads || (strategy && !strategy->empty() && *strategy != "" && *strategy != false)) &&
        sharding.stage < 0)
        sharding.stage = 3;  // FSDP's default
    if (ranks && *ranks != 1 && sharding.stage < 0) sharding.stage = 3;
    if (ranks && *ranks != 1)
        importer.note("dp_shard_size",
                      cat(shown(*ranks), ": all ranks that do not share a row's work shard what zero_stage says"));
    const char* const key = configured ? "fsdp_config" : strategy ? "fsdp" : "dp_shard_size";
    write(importer, key, sharding);
    for (const auto& [key, value] :
         {std::pair{"fsdp_version", version}, std::pair{"fsdp_final_state_dict_type", state}})
        if (value) importer.note(key, "has no effect: how FSDP gathers weights changes no result");
}

}  // namespace

void import_sharding(Importer& importer) {
    import_fsdp(importer);
    const auto given = importer.take("deepspeed");
    if (!given || *given == "" || *given == false) return;
    Sharding sharding;
    if (given->is_object()) {
        read_deepspeed(importer, *given, sharding);
    } else if (given->is_string()) {
        const std::filesystem::path file = importer.find_file(given->get<std::string>());
        const Json tree = file.empty() ? Json(nullptr) : config::read_tree(file);
        if (tree.is_object())
            read_deepspeed(importer, tree, sharding);
        else
            read_known_name(*given, sharding);
        if (!tree.is_object() && sharding.stage >= 0)
            importer.note("deepspeed", cat(shown(*given), " is not here: its name says the stage"));
    }
    if (sharding.stage < 0) return importer.leave("deepspeed", cat(shown(*given), ": ", equivalents));
    write(importer, "deepspeed", sharding);
}

}  // namespace unsloth::import
