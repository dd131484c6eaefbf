// Options that the configuration leaves to the program are numbers from here on: what is written down of a run, what is
// compared with other ranks, and what a resumed run finds.
#include <cmath>

#include "unsloth/config/auto_values.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/peft.h"
#include "unsloth/placement/load_request.h"
#include "unsloth/train/rank_rule.h"
#include "unsloth/train/run_setup.h"

namespace unsloth::train {

void RunSetup::settle_learning_rate() {
    std::optional<double>& rate = loaded_.config.training.learning_rate;
    if (rate) return;
    if (resume_) rate = number_before(*resume_, "training", "learning_rate");
    if (rate) return log::info("learning_rate auto: ", *rate, ", as the run began");
    const config::LearningRateRule rule = config::learning_rate_rule(config(), opened_.file->spec);
    rate = rule.rate;
    log::info("learning_rate auto: ", rule.reason);
}

/// After the rows are read. An adapter that is trained on, or a run that is resumed, has its rank already.
void RunSetup::settle_rank() {
    int64_t& r = loaded_.config.lora.r;
    if (r != config::auto_rank) return;
    r = config::LoraOptions().r;
    if (full()) return;
    if (const auto& adapter = config().model.adapter_name_or_path) {
        r = formats::read_peft_config(formats::resolve_model_path(*adapter)).lora.r;
        return log::info("r auto: ", r, ", that of the adapter ", *adapter);
    }
    const auto before = resume_ ? number_before(*resume_, "lora", "r") : std::nullopt;
    if (before) {
        r = std::llround(*before);
        return log::info("r auto: ", r, ", as the run began");
    }
    const int64_t all = loader_->dataset().stats().trained_tokens;
    const double seen = total_steps_ > 0 && total_steps_ < epoch_steps_
                            ? static_cast<double>(total_steps_) / static_cast<double>(epoch_steps_)
                            : 1;
    const RankRule rule = rank_rule(config(), opened_.file->spec, placement::lora_spec(loaded_),
                                    std::llround(seen * static_cast<double>(all)));
    r = rule.r;
    log::info("r auto: ", rule.reason);
}

}  // namespace unsloth::train
