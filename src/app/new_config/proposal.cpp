#include "app/new_config/proposal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "unsloth/config/peer_fields.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace {

/// Of those that rows decide.
const char* objective_name(config::Objective objective) {
    return objective == config::Objective::dpo ? "dpo" : objective == config::Objective::kto ? "kto" : "decision";
}

using config::Json;

constexpr int64_t length_unit = 64;  // tokens
const int64_t usual_warmup = config::TrainingOptions().warmup_steps;
constexpr int64_t usual_longest = 4096;  // above it, a few long rows do not decide

int64_t rounded_up(int64_t tokens) {
    return (tokens + length_unit - 1) / length_unit * length_unit;
}

/// What the plan has a say in.
struct Tried {
    std::optional<bool> in_4bit;  ///< nullopt: the checkpoint is stored in 4 or 8 bit
    int64_t length = 0;           ///< model.max_seq_length
    int64_t batch = 0, accumulation = 0;
    engine_api::PlanEstimate estimate;
};

class Chooser {
  public:
    Chooser(const ModelFacts& model, const RowFacts& rows, bool on_cpu, const std::string& output_dir,
            const Planner& plan)
        : model_(model), rows_(rows), on_cpu_(on_cpu), output_dir_(output_dir), plan_(plan) {
        const int64_t wanted = rows.rows >= 512 ? 16 : rows.rows >= 128 ? 8 : 4;
        step_rows_ = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::min(wanted, rows.rows))));
        if (rows.rows >= least_to_hold_out && !rows.augmented && rows.eval_split.empty())
            held_out_ = std::clamp<int64_t>(rows.rows / 20, 10, 200);
        epochs_ = rows.rows >= 10000 ? 1 : rows.rows >= 1000 ? 2 : 3;
    }

    Proposal choose() {
        const int64_t whole = rounded_up(rows_.longest <= usual_longest ? rows_.longest : rows_.p99);
        wanted_length_ = std::min({model_.positions, usual_longest * 2, whole});
        for (int64_t length = wanted_length_;; length = std::min(rounded_up(length / 2), length - 1)) {
            if (const std::optional<Tried> best = best_of(length)) return proposal(*best);
            if (length <= length_unit) break;
        }
        throw Error(
            "memory.plan-too-large",
            cat(model_.path, " does not fit ", last_.estimate.device, ": one row of ", length_unit, " tokens takes ",
                human_size(last_.estimate.total_bytes), " of ", human_size(last_.estimate.budget_bytes)),
            "Choose a smaller model or a larger card.");
    }

  private:
    static constexpr int64_t least_to_hold_out = 200;

    /// 16-bit weights where they cost no speed, else those in 4 bit; nullopt: neither fits.
    std::optional<Tried> best_of(int64_t length) {
        slower_.reset();
        if (model_.quantized) return largest_batch(length, {});
        const std::optional<Tried> whole = largest_batch(length, false);
        const bool stays = whole && whole->estimate.elsewhere.empty();
        if (stays && on_cpu_) return whole;
        std::optional<Tried> small = largest_batch(length, true);
        constexpr double as_fast = 0.98;
        const auto rate = [](const Tried& tried) { return tried.estimate.tokens_per_second; };
        if (stays && (!small || rate(*whole) >= as_fast * rate(*small))) return whole;
        if (whole && small) slower_ = whole->estimate;
        return small ? small : whole;
    }

    /// The largest micro-batch that fits; nullopt: not even one row does.
    std::optional<Tried> largest_batch(int64_t length, std::optional<bool> in_4bit) {
        constexpr int64_t most_on_cpu = 4;
        for (int64_t batch = on_cpu_ ? std::min(step_rows_, most_on_cpu) : step_rows_; batch > 0; batch /= 2) {
            last_ = {in_4bit, length, batch, step_rows_ / batch, {}};
            last_.estimate = plan_(loaded(choices_of(last_)));
            if (!last_.estimate.fits) continue;
            if (last_.estimate.rows * last_.estimate.micro_batches == step_rows_)
                last_.batch = last_.estimate.rows, last_.accumulation = last_.estimate.micro_batches;
            return last_;
        }
        return std::nullopt;
    }

    static config::LoadedConfig loaded(const std::vector<Choice>& choices) {
        std::vector<std::string> flags;
        for (const Choice& choice : choices) {
            flags.push_back("--" + choice.option);
            flags.push_back(config::shown(choice.value));
        }
        return config::load_config({}, flags);
    }

    int64_t steps() const {
        return std::max<int64_t>(1, (rows_.rows - held_out_ + step_rows_ - 1) / step_rows_) * epochs_;
    }

    std::string why_length(int64_t length) const {
        if (length < wanted_length_) return cat("longer rows do not fit in memory; the longest has ", rows_.longest);
        if (length >= rows_.longest) return cat("the longest row has ", rows_.longest, " tokens");
        return cat("99 of 100 rows have at most ", rows_.p99, " tokens, the longest ", rows_.longest);
    }

    std::string why_weights(const Tried& tried) const {
        if (!*tried.in_4bit) return on_cpu_ ? "16-bit weights fit" : "16-bit weights fit, and cost no speed here";
        if (slower_ && slower_->tokens_per_second > 0)
            return cat("with 16-bit weights it would be ", std::lround(slower_->tokens_per_second),
                       " tokens/s instead of ", std::lround(tried.estimate.tokens_per_second));
        return "16-bit weights do not fit";
    }

    std::string why_checkpointing(const Tried& tried) const {
        const engine_api::PlanEstimate& estimate = tried.estimate;
        const double share = 100 * static_cast<double>(estimate.total_bytes) /
                             static_cast<double>(std::max<int64_t>(1, estimate.budget_bytes));
        return cat("here ", estimate.keeps, ", with which the plan takes ", human_size(estimate.total_bytes), " of ",
                   human_size(estimate.budget_bytes), " (", std::lround(share), " %)");
    }

    /// What holds for every plan, and what `tried` says.
    std::vector<Choice> choices_of(const Tried& tried) const {
        const bool prefers = rows_.objective == config::Objective::dpo || rows_.objective == config::Objective::kto;
        std::vector<Choice> all = {{"model.path", model_.path, ""}};
        if (tried.in_4bit) all.push_back({"model.load_in_4bit", *tried.in_4bit, why_weights(tried)});
        all.push_back({"model.max_seq_length", tried.length, why_length(tried.length)});
        all.push_back({"lora.r", 16, "the usual rank"});
        all.push_back({"lora.lora_alpha", 16, ""});
        all.push_back({"data.train_file", rows_.file, ""});
        if (rows_.alpaca && model_.has_chat_template)
            all.push_back({"data.template", "default", "the rows go through the model's own chat template"});
        if (rows_.skipped > 0)
            all.push_back({"data.skip_invalid", true, cat(rows_.skipped, " rows leave nothing to train on")});
        if (!rows_.eval_split.empty())
            all.push_back({"data.eval_split", rows_.eval_split, "evaluated on, and not trained on"});
        if (held_out_ > 0)
            all.push_back({"data.val_size", held_out_, "rows that are evaluated on instead of trained on"});
        if (rows_.objective != config::Objective::sft)
            all.push_back({"training.objective", objective_name(rows_.objective), cat("for rows of ", rows_.format)});
        all.push_back({"training.output_dir", output_dir_, ""});
        all.push_back({"training.per_device_train_batch_size", tried.batch, cat(step_rows_, " rows a step")});
        all.push_back({"training.gradient_accumulation_steps", tried.accumulation, ""});
        all.push_back({"training.gradient_checkpointing", "auto", why_checkpointing(tried)});
        all.push_back({"training.num_train_epochs", epochs_, cat(steps(), " steps in all")});
        all.push_back({"training.learning_rate", prefers ? 1e-5 : 2e-4, "usual for adapters"});
        if (const int64_t warmup = steps() / 10; warmup < usual_warmup)
            all.push_back({"training.warmup_steps", warmup, "at most a tenth of the steps"});
        if (held_out_ > 0 || !rows_.eval_split.empty()) {
            const int64_t every = (steps() + 4) / 5, times = (steps() + every - 1) / every;
            all.push_back({"training.eval_steps", every, times == 1 ? "once" : cat(times, " times")});
        }
        if (on_cpu_) all.push_back({"hardware.device", "cpu", ""});
        return all;
    }

    Proposal proposal(const Tried& tried) const { return {choices_of(tried), tried.estimate}; }

    const ModelFacts& model_;
    const RowFacts& rows_;
    bool on_cpu_;
    std::string output_dir_;
    const Planner& plan_;
    int64_t step_rows_ = 0, held_out_ = 0, epochs_ = 0, wanted_length_ = 0;
    Tried last_;                                      ///< planned
    std::optional<engine_api::PlanEstimate> slower_;  ///< with 16-bit weights, where 4-bit ones were chosen
};

}  // namespace

Proposal propose(const ModelFacts& model, const RowFacts& rows, bool on_cpu, const std::string& output_dir,
                 const Planner& plan) {
    return Chooser(model, rows, on_cpu, output_dir, plan).choose();
}

std::string json_of(const std::vector<Choice>& choices) {
    Json root = Json::object();
    for (const Choice& choice : choices) {
        const std::size_t dot = choice.option.find('.');
        root[choice.option.substr(0, dot)][choice.option.substr(dot + 1)] = choice.value;
    }
    return root.dump(2) + "\n";
}

}  // namespace unsloth::app
