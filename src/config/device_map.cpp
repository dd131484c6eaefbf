#include "unsloth/config/device_map.h"

#include <algorithm>
#include <set>

#include "unsloth/config/json.h"
#include "unsloth/config/option.h"
#include "unsloth/core/error.h"
#include "unsloth/core/whole_number.h"

namespace unsloth::config {
namespace {

constexpr const char* option = "model.device_map";
constexpr const char* advice =
    "Keys are \"\" (all of it), model, model.embed_tokens, model.layers, model.layers.N, model.layers.N-M, model.norm, "
    "lm_head; values a GPU's number, \"cpu\" or \"disk\".";

}  // namespace

DeviceMap::Entry DeviceMap::read_key(const std::string& key) {
    Entry entry;
    entry.key = key;
    const std::string layers = "model.layers.";
    if (key.empty()) return entry;
    if (key == "model") {
        entry.part = Entry::Part::model;
    } else if (key == "model.layers") {
        entry.part = Entry::Part::layers;
    } else if (key == "model.embed_tokens") {
        entry.part = Entry::Part::embedding;
    } else if (key == "model.norm" || key == "model.rotary_emb" || key == "lm_head") {
        entry.part = Entry::Part::fixed;
    } else if (key.starts_with(layers)) {
        const std::string range = key.substr(layers.size());
        if (range.find('.') != std::string::npos)
            throw Error("model.device-map",
                        cat(option, ": '", key, "' is a part of a layer: a layer is in one place as a whole"), advice);
        const std::size_t dash = range.find('-');
        const auto first = whole_number(range.substr(0, dash));
        const auto last = dash == std::string::npos ? first : whole_number(range.substr(dash + 1));
        if (!first || !last || *last < *first)
            throw Error("model.device-map", cat(option, ": '", key, "' is no layer and no range of layers"), advice);
        entry.part = Entry::Part::some_layers;
        entry.first = *first;
        entry.last = *last;
    } else {
        throw Error("model.device-map", cat(option, ": there is no module '", key, "'"), advice);
    }
    return entry;
}

DeviceMap::DeviceMap(const ModelOptions& model) {
    const Json map = Json::parse(model.device_map);
    if (map.is_string()) {
        word_ = map.get<std::string>();
        return;
    }
    if (map.empty()) throw Error("model.device-map", cat(option, " is an empty object"), advice);
    std::set<int64_t> gpus;
    for (const auto& [key, value] : map.items()) {
        Entry& entry = entries_.emplace_back(read_key(key));
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        if (text == "cpu" || text == "disk") {
            entry.place = text == "cpu" ? spec::Place::host : spec::Place::disk;
        } else {
            const auto number = text == "cuda" ? std::optional<int64_t>(0)
                                               : whole_number(text.starts_with("cuda:") ? text.substr(5) : text);
            if (!number)
                throw Error("model.device-map",
                            cat(option, ": '", key, "' is at ", value.dump(), ", which is no place"), advice);
            gpus.insert(entry.gpu = *number);
        }
        if (entry.part == Entry::Part::embedding && entry.place == spec::Place::disk)
            throw Error("model.device-map",
                        cat(option, ": '", key, "' cannot be on the disk: single rows of it are read"),
                        "Put it on the GPU or in host memory (\"cpu\").");
    }
    gpus_ = static_cast<int>(gpus.size());
    if (gpus_ < 2) return;
    if (*gpus.rbegin() != gpus_ - 1)
        throw Error("model.device-map",
                    cat(option, " names ", gpus_, " GPUs, of which one has number ", *gpus.rbegin()),
                    cat("Number them 0 to ", gpus_ - 1, "; CUDA_VISIBLE_DEVICES says which ones these are."));
    for (const Entry& entry : entries_)
        if (entry.gpu < 0)
            throw Error("model.device-map",
                        cat(option, ": '", entry.key, "' is not on a GPU, in a map over ", gpus_,
                            " of them, each of which holds its layers"),
                        "Name GPUs alone, or one GPU with \"cpu\" and \"disk\".");
}

/// What a key names must be there.
void DeviceMap::check_layers(int64_t num_layers) const {
    for (const Entry& entry : entries_)
        if (entry.part == Entry::Part::some_layers && entry.last >= num_layers)
            throw Error("model.device-map",
                        cat(option, ": '", entry.key, "', but the model has layers 0 to ", num_layers - 1));
}

std::vector<spec::LayerRange> DeviceMap::stages(int64_t num_layers) const {
    check_layers(num_layers);
    std::vector<spec::LayerRange> stages;
    for (int layer = 0; layer < static_cast<int>(num_layers); ++layer) {
        const Entry* const entry = entry_of(Entry::Part::some_layers, layer);
        if (entry == nullptr)
            throw Error("model.device-map", cat(option, " does not say where model.layers.", layer, " is"), advice);
        const auto last = static_cast<int64_t>(stages.size()) - 1;
        if (entry->gpu != last && entry->gpu != last + 1)
            throw Error("model.device-map",
                        cat(option, ": model.layers.", layer, " is on GPU ", entry->gpu, ", the layer below on ",
                            last < 0 ? "none" : std::to_string(last), ": GPUs have layers in their own order"),
                        "Give each GPU a range of layers, the lowest to GPU 0.");
        if (entry->gpu > last) stages.push_back({layer, layer});
        stages.back().end = layer + 1;
    }
    if (static_cast<int>(stages.size()) != gpus_)
        throw Error("model.device-map", cat(option, " names ", gpus_, " GPUs, but layers of ", stages.size()),
                    "Give each GPU a range of layers.");
    for (const Entry& entry : entries_) {
        const bool first = entry.part == Entry::Part::embedding, last = entry.part == Entry::Part::fixed;
        const bool rotary = entry.key == "model.rotary_emb";  // everyone makes its own
        if ((first && entry.gpu != 0) || (last && !rotary && entry.gpu != gpus_ - 1))
            throw Error("model.device-map",
                        cat(option, ": '", entry.key, "' is on GPU ", entry.gpu,
                            first ? ", and not with the first layers" : ", and not with the last layers"),
                        cat("Put it on GPU ", first ? 0 : gpus_ - 1, ", or leave it out."));
    }
    return stages;
}

int processes_of(const Config& config, const std::function<int()>& visible) {
    const DeviceMap map(config.model);
    const std::string& device = config.hardware.device;
    if (device != "auto" && device != "cuda") return 1;
    if (map.gpus() > 1) return map.gpus();
    const bool spreads = map.word() == "sequential" || map.word() == "balanced" || map.word() == "balanced_low_0";
    return spreads ? std::max(1, visible()) : 1;
}

/// How closely the entry names a layer (>= 0), or a part outside of the layers; 0: not at all.
int DeviceMap::Entry::rank(Part of, int64_t layer) const {
    switch (part) {
        case Part::all:
            return 1;
        case Part::model:
            return 2;
        case Part::layers:
            return layer >= 0 ? 3 : 0;
        case Part::some_layers:
            return layer >= first && layer <= last ? 4 : 0;
        case Part::embedding:
        case Part::fixed:
            return layer < 0 && part == of ? 4 : 0;
    }
    return 0;
}

spec::Place DeviceMap::Entry::place_for(int run_gpu) const {
    return run_gpu < 0 && place == spec::Place::host ? spec::Place::device : place;
}

const DeviceMap::Entry* DeviceMap::entry_of(Entry::Part part, int64_t layer) const {
    const Entry* best = nullptr;
    for (const Entry& entry : entries_) {
        const int rank = entry.rank(part, layer), most = best != nullptr ? best->rank(part, layer) : 0;
        if (rank > 0 && rank == most)
            throw Error("model.device-map",
                        cat(option, ": both '", best->key, "' and '", entry.key, "' name layer ", layer));
        if (rank > most) best = &entry;
    }
    return best;
}

void DeviceMap::check_gpu(int gpu) const {
    if (gpus_ > 1) return;  // each process has its own
    for (const Entry& entry : entries_) {
        if (entry.gpu >= 0 && gpu < 0)
            throw Error("model.device-map",
                        cat(option, ": '", entry.key, "' is on GPU ", entry.gpu, ", and the run is on the CPU"),
                        cat("Name \"cpu\" or \"disk\", or leave ", option,
                            " out; on a machine with a GPU, set hardware.device."));
        if (entry.gpu > 0 && entry.gpu != gpu)  // 0 is each process' own
            throw Error("model.device-map",
                        cat(option, ": '", entry.key, "' is on GPU ", entry.gpu, ", the run's is ", gpu),
                        cat("Set hardware.device to cuda:", entry.gpu, ", or name GPU 0."));
        // What an entry for more ("", "model") says is not meant for them.
        if (entry.part == Entry::Part::fixed && entry.place_for(gpu) != spec::Place::device)
            throw Error("model.device-map", cat(option, ": '", entry.key, "' can only be on the GPU"),
                        cat("Leave '", entry.key, "' out: it stays there."));
    }
}

std::vector<spec::Place> DeviceMap::layers(int64_t num_layers, int gpu) const {
    check_gpu(gpu);
    check_layers(num_layers);
    std::vector<spec::Place> places;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
        const Entry* const entry = entry_of(Entry::Part::some_layers, layer);
        if (entry == nullptr)
            throw Error("model.device-map", cat(option, " does not say where model.layers.", layer, " is"), advice);
        places.push_back(entry->place_for(gpu));
    }
    return places;
}

bool DeviceMap::embedding_on_host(int gpu) const {
    check_gpu(gpu);
    const Entry* const entry = entry_of(Entry::Part::embedding, -1);
    return entry != nullptr && entry->place_for(gpu) != spec::Place::device;
}

std::optional<int64_t> max_memory(const ModelOptions& model, int gpu) {
    std::optional<int64_t> bytes;
    for (const auto& [key, size] : model.max_memory) {
        const std::string origin = cat("model.max_memory: ", key);
        const auto number = whole_number(key);
        if (key != "cpu" && !number)
            throw Error("memory.bad-limit", cat(origin, " is no device"), "Keys are GPUs' numbers and \"cpu\".");
        const int64_t value = parse_byte_size(size, origin);
        constexpr int64_t least = 100'000;  // of no use for any model: a slip of the unit
        if (value < least)
            throw Error("memory.bad-limit", cat(origin, " is ", value, " bytes"),
                        "A number without a unit is in bytes: \"12GiB\", \"64GB\".");
        if (gpu < 0 ? key == "cpu" : number == gpu) bytes = value;
    }
    return bytes;
}

}  // namespace unsloth::config
