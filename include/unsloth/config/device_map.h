// model.device_map and model.max_memory: where the model's parts are stored, and how much of each memory they may take.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/spec/run_plan.h"
#include "unsloth/spec/stage.h"

namespace unsloth::config {

/// What model.device_map says. `gpu` is the number of the run's GPU, -1 for a run on the CPU, whose memory "cpu" is
/// then the device's own. usage Error where the map is not one that can be followed.
class DeviceMap {
  public:
    /// usage Error for modules and places that are unknown, and for a map over several GPUs that no pipeline of as many
    /// processes can follow.
    explicit DeviceMap(const ModelOptions& model);

    /// A word (auto, …), which leaves the choice to the program; the rest is for others.
    bool automatic() const { return entries_.empty(); }
    const std::string& word() const { return word_; }  ///< empty: a map
    /// How many GPUs a map names: the model is then a pipeline of as many stages, a process each. 0: a word, or none.
    int gpus() const { return gpus_; }
    /// Of a map over several GPUs what each has. usage Error where these are not neighbouring layers in order.
    std::vector<spec::LayerRange> stages(int64_t num_layers) const;
    /// One a layer. usage Error for a layer that is not there, not named, or named twice.
    std::vector<spec::Place> layers(int64_t num_layers, int gpu) const;
    bool embedding_on_host(int gpu) const;

  private:
    /// An entry of the map. A part's own holds before that of what the part belongs to.
    struct Entry {
        enum class Part : uint8_t { all, model, layers, some_layers, embedding, fixed } part = Part::all;
        std::string key;
        int64_t first = 0, last = 0;  ///< of some_layers
        spec::Place place = spec::Place::device;
        int64_t gpu = -1;  ///< -1: "cpu" or "disk"
        int rank(Part of, int64_t layer) const;
        spec::Place place_for(int run_gpu) const;
    };
    static Entry read_key(const std::string& key);
    const Entry* entry_of(Entry::Part part, int64_t layer) const;
    void check_gpu(int gpu) const;
    void check_layers(int64_t num_layers) const;
    std::vector<Entry> entries_;
    std::string word_;
    int gpus_ = 0;
};

/// How many processes, one a GPU, a training run that was started as one is to become for its device_map; 1: it stays
/// one. `visible`: the machine's GPUs, asked only where a word leaves their number open.
int processes_of(const Config& config, const std::function<int()>& visible);

/// Bytes that model.max_memory allows on a GPU; for `gpu` -1 of host memory ("cpu"). nullopt: no bound. usage Error for
/// a size or a key that is none.
std::optional<int64_t> max_memory(const ModelOptions& model, int gpu);

}  // namespace unsloth::config
