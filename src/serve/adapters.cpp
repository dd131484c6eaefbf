#include "unsloth/serve/adapters.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "serve/texts.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/formats/finite.h"
#include "unsloth/openai/error.h"

namespace unsloth::serve {
namespace {

namespace fs = std::filesystem;

openai::ApiError unfit(const std::string& name, const std::string& why) {
    return openai::ApiError(400, cat("The adapter '", name, "' cannot be loaded: ", why), "lora_path",
                            "adapter_does_not_fit");
}

/// What its answers depend on.
std::string content_hash(const formats::Adapter& adapter, const fs::path& folder) {
    ContentHash hash;
    hash.add_field(read_file(folder / "adapter_config.json"));
    if (const fs::path file = folder / formats::decision_calibration_file; fs::exists(file))
        hash.add_field(read_file(file));
    for (const formats::TensorView& tensor : adapter.file.tensors()) {
        hash.add_field(tensor.name);
        hash.add({reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()});
    }
    return hash.hex();
}

bool same_scaling(const std::string& one, const std::string& other) {
    const auto parsed = [](const std::string& text) { return nlohmann::json::parse(text.empty() ? "{}" : text); };
    return parsed(one) == parsed(other);
}

}  // namespace

struct AdapterSet::FreeSlots {
    std::mutex mutex;
    std::vector<int64_t> free;  ///< the last one is taken first

    int64_t take() {
        const std::lock_guard lock(mutex);
        if (free.empty()) return -1;
        const int64_t slot = free.back();
        free.pop_back();
        return slot;
    }
    void give(int64_t slot) {
        const std::lock_guard lock(mutex);
        free.push_back(slot);
    }
};

AdapterSet::AdapterSet(model::Model& model, std::shared_ptr<const formats::WeightFile> base,
                       const weights::AdapterSlots& slots, std::string base_name, std::string rope_scaling)
    : model_(model),
      base_(std::move(base)),
      slots_(slots),
      base_name_(std::move(base_name)),
      rope_scaling_(std::move(rope_scaling)),
      free_(std::make_shared<FreeSlots>()) {
    for (int64_t slot = slots.count; slot-- > 0;) free_->free.push_back(slot);
}

void AdapterSet::load(const std::string& name, const std::string& folder, const BetweenPasses& between_passes) {
    const std::lock_guard one_at_a_time(loading_);
    std::shared_ptr<const formats::Adapter> adapter;
    std::string hash;
    double temperature = 1;
    try {
        adapter = std::make_shared<const formats::Adapter>(weights::read_for_batches({name, folder}, base_->spec));
        formats::require_finite(*adapter);
        formats::warn_of_other_base(*adapter, *base_, base_name_);
        hash = content_hash(*adapter, folder);
        if (const auto found = formats::read_decision_calibration(folder)) temperature = found->temperature;
    } catch (const Error& refused) {
        throw unfit(name, refused.what());
    }
    if (!same_scaling(adapter->config.rope_scaling, rope_scaling_))
        throw unfit(name, "it was trained with another rope_scaling than the service has");
    const int64_t rank = weights::largest_rank(*adapter);
    if (rank > slots_.rank)
        throw unfit(name, cat("it has rank ", rank, ", and the service takes ranks up to ", slots_.rank,
                              ". Restart it with --max_lora_rank ", rank, "."));
    if (weights::adapts_experts(*adapter) && !slots_.experts)
        throw unfit(name,
                    "it adapts experts, and the places of the service have none: they take much memory. Restart it "
                    "with an adapter of experts among --adapter NAME=DIR.");
    const int64_t slot = free_->take();
    if (slot < 0)
        throw openai::ApiError(409,
                               cat("All ", slots_.count, " places for adapters are in use. Unload one, wait for ",
                                   "its answers, or restart the service with a higher --max_loras."),
                               "", "no_free_adapter_slot");
    // The slot is free again once the last answer lets go.
    std::shared_ptr<LoadedAdapter> made(new LoadedAdapter{name, folder, hash, slot, 0, 0},
                                        [free = free_](const LoadedAdapter* old) {
                                            free->give(old->slot);
                                            delete old;
                                        });
    made->created = unix_seconds();
    made->decision_temperature = temperature;
    std::promise<void> written;
    between_passes([&] {
        try {
            weights::write_slot(*model_.parameters(), slots_, slot, adapter.get());
            model_.parameters_changed();
            written.set_value();
        } catch (...) {
            written.set_exception(std::current_exception());
        }
    });
    written.get_future().get();
    log::info("adapter ", name, " (", folder, "): r ", rank, ", content ", hash.substr(0, 12));
    const std::lock_guard lock(mutex_);
    made->prefix = prefixes_.emplace(hash, static_cast<uint32_t>(prefixes_.size()) + 1).first->second;
    loaded_[name] = std::move(made);
}

bool AdapterSet::unload(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return loaded_.erase(name) > 0;
}

std::shared_ptr<const LoadedAdapter> AdapterSet::find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = loaded_.find(name);
    return found == loaded_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const LoadedAdapter>> AdapterSet::all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<const LoadedAdapter>> all;
    for (const auto& [name, adapter] : loaded_) all.push_back(adapter);
    return all;
}

}  // namespace unsloth::serve
