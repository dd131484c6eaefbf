// The adapters that a service answers with, by name: loaded and unloaded while others answer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "unsloth/formats/load_plan.h"
#include "unsloth/model/model.h"
#include "unsloth/weights/multi_lora_adapters.h"

namespace unsloth::serve {

struct LoadedAdapter {
    std::string name, folder;
    std::string hash;                 ///< of its files' content
    int64_t slot = 0;                 ///< which a sequence names
    uint32_t prefix = 0;              ///< one for each content: cached keys are shared by it, and never stale
    int64_t created = 0;              ///< seconds since 1970
    double decision_temperature = 1;  ///< of its decision_calibration.json
};

/// A name means one adapter at a time. Answers hold the one that they began with: its slot is free once none does.
/// Every member is safe from any thread.
class AdapterSet {
  public:
    /// Runs its argument between passes.
    using BetweenPasses = std::function<void(std::function<void()>)>;

    /// `model` was planned with `slots`, and `base` is its file; all outlive the set and what it hands out. `base_name`
    /// and `rope_scaling` are the base's as the user named them.
    AdapterSet(model::Model& model, std::shared_ptr<const formats::WeightFile> base, const weights::AdapterSlots& slots,
               std::string base_name, std::string rope_scaling);

    /// Reads and checks a PEFT folder, and takes a slot. What was loaded under the name is replaced. ApiError 400 with
    /// the reason where it does not fit, 409 where no slot is free. One at a time.
    void load(const std::string& name, const std::string& folder, const BetweenPasses& between_passes);
    /// False: there is none of this name.
    bool unload(const std::string& name);

    /// nullptr: there is none.
    std::shared_ptr<const LoadedAdapter> find(const std::string& name) const;
    std::vector<std::shared_ptr<const LoadedAdapter>> all() const;
    int64_t slots() const { return slots_.count; }

  private:
    struct FreeSlots;
    model::Model& model_;
    std::shared_ptr<const formats::WeightFile> base_;
    weights::AdapterSlots slots_;
    std::string base_name_, rope_scaling_;

    std::mutex loading_;
    mutable std::mutex mutex_;
    std::shared_ptr<FreeSlots> free_;
    std::map<std::string, std::shared_ptr<const LoadedAdapter>> loaded_;
    std::map<std::string, uint32_t> prefixes_;  ///< by content
};

}  // namespace unsloth::serve
