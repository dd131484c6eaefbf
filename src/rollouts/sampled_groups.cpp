#include "unsloth/rollouts/sampled_groups.h"

#include <algorithm>

#include "rollouts/group_sampler.h"
#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/data/sampler.h"
#include "unsloth/data/training_data.h"
#include "unsloth/rollouts/generation.h"

namespace unsloth::rollouts {
namespace {

/// Completions of held-out prompts have random numbers from here on: no training completion has them.
constexpr int64_t first_evaluated_answer = int64_t{1} << 31;

/// Prompts of one name that are not trained on.
struct HeldOut {
    std::string name;  ///< empty: all have one set
    std::vector<PromptRow> rows;
};

int64_t longest_of(const std::vector<PromptRow>& rows) {
    std::size_t longest = 0;
    for (const PromptRow& row : rows) longest = std::max(longest, row.ids.size());
    return static_cast<int64_t>(longest);
}

std::vector<int64_t> numbers_of(const std::vector<PromptRow>& rows) {
    std::vector<int64_t> numbers;
    for (const PromptRow& row : rows) numbers.push_back(row.row);
    return numbers;
}

/// Moves what data.val_size holds out of the training rows.
std::vector<PromptRow> hold_out(std::vector<PromptRow>& rows, const config::Config& config) {
    std::vector<PromptRow> held, kept;
    const std::vector<int64_t> places =
        data::validation_places(numbers_of(rows), config.data.val_size, static_cast<uint64_t>(config.training.seed));
    auto next = places.begin();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool out = next != places.end() && *next == static_cast<int64_t>(i);
        if (out) ++next;
        (out ? held : kept).push_back(std::move(rows[i]));
    }
    rows = std::move(kept);
    return held;
}

class Sampled final : public GroupSource {
  public:
    Sampled(const config::Config& config, const RolloutOrder& order, const session::OpenedModel& opened, int rank,
            int ranks)
        : config_(config), order_(order), ranks_(ranks), sampler_(config, opened, rank, ranks) {
        read_rows();
        if (generations_of_epoch() == 0)
            throw Error("data.too-few-rows",
                        cat("the data have ", rows_.size(), " prompts, and a generation batch takes ", order_.groups()),
                        "Bring more prompts, or lower training.per_device_train_batch_size or "
                        "grpo.steps_per_generation.");
        numbers_ = numbers_of(rows_);
        longest_ = longest_of(rows_);
        for (const HeldOut& set : held_out_) longest_ = std::max(longest_, longest_of(set.rows));
    }

    void attach(ops::Context& ctx, model::Model& model, comm::Group* group, int64_t rows) override {
        sampler_.attach(ctx, model, group, rows, needs()->context);
    }

    ScoredGroups generation(int64_t number, int64_t step) override {
        const int64_t first = number * order_.groups();
        GroupSampler::Job job{.completions = order_.group_size,
                              .first_prompt = first,
                              .trainer_state = state_at(step - 1, number),
                              .what = "the generation batch"};
        for (int64_t g = 0; g < order_.groups(); ++g) job.prompts.push_back(&row_of(first + g));
        return sampler_(job);
    }

    int64_t evaluated_tokens() const override {
        return held_out_prompts() * evaluated_each() * config_.grpo.max_completion_length;
    }
    Evaluation evaluation(int64_t step, double epoch) override {
        GroupSampler::Job job{
            .completions = evaluated_each(),
            .first_answer = first_evaluated_answer,
            .trainer_state = {step, config_.training.max_steps, epoch, config_.training.num_train_epochs},
            .what = "the evaluation's completions"};
        std::vector<std::string> sets;
        for (const HeldOut& set : held_out_)
            for (const PromptRow& row : set.rows) {
                job.prompts.push_back(&row);
                sets.push_back(set.name);
            }
        Evaluation found{sampler_(job), {}, std::move(sets)};
        found.metrics = evaluation_metrics(config_.grpo, *this, found.groups, found.sets);
        return found;
    }

    const std::vector<std::string>& reward_names() const override { return sampler_.reward_names(); }
    std::vector<double> reward_weights() const override { return sampler_.reward_weights(); }
    int64_t generations_of_epoch() const override { return static_cast<int64_t>(rows_.size()) / order_.groups(); }
    bool repeats() const override { return true; }
    std::optional<placement::Answering> needs() const override {
        return placement::Answering{(order_.rows() + ranks_ - 1) / ranks_, longest_,
                                    longest_ + config_.grpo.max_completion_length};
    }
    data::Dataset longest_rows() const override {
        std::vector<const PromptRow*> by_length;
        for (const PromptRow& row : rows_) by_length.push_back(&row);
        std::sort(by_length.begin(), by_length.end(),
                  [](const PromptRow* a, const PromptRow* b) { return a->ids.size() > b->ids.size(); });
        const std::vector<int32_t> longest(static_cast<std::size_t>(config_.grpo.max_completion_length),
                                           sampler_.end_token());
        std::vector<data::Sample> samples;  // each prompt has a group's completions
        for (int64_t i = 0; i < order_.rows_of_step(); ++i) {
            const auto prompt = static_cast<std::size_t>(i / order_.group_size) % by_length.size();
            samples.push_back(sample_of(by_length[prompt]->ids, longest, i));
        }
        return data::Dataset::from_samples(samples);
    }
    std::string fingerprint() const override {
        ContentHash hash;
        for (const PromptRow& row : rows_) {
            hash.add_field(std::to_string(row.row));
            hash.add_field(row.prompt);
            hash.add_field(row.columns);
            for (const int32_t id : row.ids) hash.add_field(std::to_string(id));
        }
        return hash.hex();
    }
    std::string describe() const override {
        std::string names;
        for (const std::string& name : reward_names()) names += cat(names.empty() ? "" : ", ", name);
        return cat(rows_.size(), " prompts, the longest of ", longest_, " tokens; ", order_.groups(), " x ",
                   order_.group_size, " completions a generation of at most ", config_.grpo.max_completion_length,
                   " tokens; rewards: ", names, held_out_text());
    }

  private:
    void read_rows() {
        const config::DataOptions& data = config_.data;
        const int64_t longest = config_.model.max_seq_length - config_.grpo.max_completion_length;
        const auto read = [&](std::span<const config::DataSource> sources) {
            return read_prompt_rows(data, sources, sampler_.tokenizer(), longest);
        };
        if (data.train_file.empty() && data.datasets.empty())
            throw Error("option.missing", "data.train_file is not set",
                        "Name a file of prompts, or grpo.replay_rollouts to learn from completions that are there.");
        rows_ = read(data::training_sources(data));
        const std::vector<config::DataSource> evaluated = data::evaluation_sources(data);
        for (std::size_t i = 0; i < evaluated.size(); ++i)
            held_out_.push_back(
                {data.eval_files.empty() ? "" : data.eval_files[i].first, read(std::span(evaluated).subspan(i, 1))});
        if (data.val_size > 0) held_out_.push_back({"", hold_out(rows_, config_)});
        for (const HeldOut& set : held_out_) sampler_.require_columns(set.rows);
        sampler_.require_columns(rows_);
    }

    int64_t evaluated_each() const { return config_.grpo.num_generations_eval.value_or(order_.group_size); }
    int64_t held_out_prompts() const {
        std::size_t prompts = 0;
        for (const HeldOut& set : held_out_) prompts += set.rows.size();
        return static_cast<int64_t>(prompts);
    }
    std::string held_out_text() const {
        return held_out_.empty() ? "" : cat("; evaluated: ", held_out_prompts(), " prompts x ", evaluated_each());
    }
    reward::TrainerState state_at(int64_t step, int64_t generation) const {
        return {step, config_.training.max_steps,
                static_cast<double>(generation) / static_cast<double>(generations_of_epoch()),
                config_.training.num_train_epochs};
    }

    /// Which prompt a group has: each epoch takes whole generation batches of all rows in an order of its own.
    const PromptRow& row_of(int64_t group) {
        const int64_t of_epoch = generations_of_epoch() * order_.groups(), epoch = group / of_epoch;
        if (epoch != epoch_) {
            places_ = data::epoch_order(numbers_, static_cast<uint64_t>(config_.training.seed),
                                        static_cast<uint32_t>(epoch), config_.data.shuffle);
            epoch_ = epoch;
        }
        return rows_[static_cast<std::size_t>(places_[static_cast<std::size_t>(group % of_epoch)])];
    }

    const config::Config& config_;
    RolloutOrder order_;
    int ranks_;
    GroupSampler sampler_;
    std::vector<PromptRow> rows_;
    std::vector<HeldOut> held_out_;
    std::vector<int64_t> numbers_;  ///< of the rows
    int64_t longest_ = 0;           ///< tokens of a prompt
    std::vector<int64_t> places_;
    int64_t epoch_ = -1;  ///< that places_ are of
};

}  // namespace

std::unique_ptr<GroupSource> open_sampled(const config::Config& config, const RolloutOrder& order,
                                          const session::OpenedModel& opened, int rank, int ranks) {
    return std::make_unique<Sampled>(config, order, opened, rank, ranks);
}

}  // namespace unsloth::rollouts
