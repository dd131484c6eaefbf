#include "unsloth/rollouts/sampled_groups.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "rollouts/shared_groups.h"
#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/data/sampler.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/reward/rewards.h"
#include "unsloth/rollouts/generation.h"
#include "unsloth/rollouts/prompt_rows.h"
#include "unsloth/session/generation.h"

namespace unsloth::rollouts {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

spec::Sampling sampling_of(const config::GrpoOptions& options) {
    spec::Sampling sampling;
    sampling.temperature = options.temperature;
    sampling.top_p = options.top_p;
    sampling.top_k = options.top_k;
    sampling.min_p = options.min_p.value_or(0);
    sampling.repetition_penalty = options.repetition_penalty;
    return sampling;
}

class Sampled final : public GroupSource {
  public:
    Sampled(const config::Config& config, const RolloutOrder& order, const session::OpenedModel& opened, int rank,
            int ranks)
        : config_(config),
          order_(order),
          rank_(rank),
          ranks_(ranks),
          tokenizer_(opened.tokenizer()),
          stops_(session::stop_ids(tokenizer_, opened.file->spec)),
          rows_(read_prompt_rows(config.data, tokenizer_,
                                 config.model.max_seq_length - config.grpo.max_completion_length)),
          rewards_(nlohmann::json::parse(config.grpo.rewards), settings(opened)) {
        if (generations_of_epoch() == 0)
            throw Error("data.too-few-rows",
                        cat("the data have ", rows_.size(), " prompts, and a generation batch takes ", order_.groups()),
                        "Bring more prompts, or lower training.per_device_train_batch_size or "
                        "grpo.steps_per_generation.");
        for (const PromptRow& row : rows_) {
            ids_.push_back(row.row);
            longest_ = std::max(longest_, static_cast<int64_t>(row.ids.size()));
        }
        if (stops_.empty())
            throw Error("tokenizer.no-eos",
                        "neither the model nor its tokenizer names an end token: completions would never end",
                        "Add eos_token_id to generation_config.json or config.json.");
        rewards_.start();
        weights_ = reward::given_weights(config.grpo, rewards_.names());
        if (weights_.empty()) weights_ = rewards_.weights();
    }

    void attach(ops::Context& ctx, model::Model& model, comm::Group* group, int64_t rows) override {
        ctx_ = &ctx;
        model_ = &model;
        group_ = group;
        rows_in_flight_ = rows;
    }

    ScoredGroups generation(int64_t number, int64_t step) override {
        ScoredGroups batch;
        for (int64_t i = 0; i < order_.groups(); ++i) batch.groups.push_back(group_of(number * order_.groups() + i));
        const Clock::time_point begin = Clock::now();
        sample(batch, number);
        const double rollout_seconds = seconds_from(begin);
        share_completions(batch, group_, ctx_->device(), config_.grpo.max_completion_length);
        int64_t tokens = 0;
        for (Group& group : batch.groups)
            for (GroupCompletion& one : group.completions) {
                one.text = tokenizer_.decode(one.ids, /*skip_special=*/true);
                tokens += static_cast<int64_t>(one.ids.size());
            }
        const Clock::time_point scoring = Clock::now();
        score(batch, number, step);
        batch.metrics.emplace_back("rows_in_flight_mean", rows_in_flight_mean_);
        batch.metrics.emplace_back("time/rollout_s", rollout_seconds);
        batch.metrics.emplace_back("time/reward_s", seconds_from(scoring));
        batch.metrics.emplace_back("rollout_tokens_per_second", static_cast<double>(tokens) / rollout_seconds);
        return batch;
    }

    const std::vector<std::string>& reward_names() const override { return rewards_.names(); }
    std::vector<double> reward_weights() const override { return weights_; }
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
                                           stops_.front());
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
        for (const std::string& name : rewards_.names()) names += cat(names.empty() ? "" : ", ", name);
        return cat(rows_.size(), " prompts, the longest of ", longest_, " tokens; ", order_.groups(), " x ",
                   order_.group_size, " completions a generation of at most ", config_.grpo.max_completion_length,
                   " tokens; rewards: ", names);
    }

  private:
    reward::Settings settings(const session::OpenedModel& opened) const {
        reward::Settings settings;
        settings.python = config_.grpo.reward_python;
        settings.workers = static_cast<int>(config_.grpo.reward_workers);
        settings.num_generations = static_cast<int>(order_.group_size);
        settings.max_completion_length = config_.grpo.max_completion_length;
        settings.seed = static_cast<uint64_t>(config_.training.seed);
        settings.rank = rank_;
        settings.ranks = ranks_;
        settings.tokenizer_folder = opened.tokenizer_folder.string();
        settings.memory_gib = config_.grpo.reward_memory_gib;
        settings.give_up = [] { return interrupt_requested() != 0; };
        return settings;
    }

    /// Which prompt a group has: each epoch takes whole generation batches of all rows in an order of its own.
    const PromptRow& row_of(int64_t group) {
        const int64_t of_epoch = generations_of_epoch() * order_.groups(), epoch = group / of_epoch;
        if (epoch != epoch_) {
            places_ = data::epoch_order(ids_, static_cast<uint64_t>(config_.training.seed),
                                        static_cast<uint32_t>(epoch), config_.data.shuffle);
            epoch_ = epoch;
        }
        return rows_[static_cast<std::size_t>(places_[static_cast<std::size_t>(group % of_epoch)])];
    }
    Group group_of(int64_t group) {
        const PromptRow& row = row_of(group);
        Group made{.prompt = row.ids, .prompt_text = tokenizer_.decode(row.ids, /*skip_special=*/false)};
        made.completions.resize(static_cast<std::size_t>(order_.group_size));
        return made;
    }
    bool is_own(std::size_t group) const { return static_cast<int>(group % static_cast<std::size_t>(ranks_)) == rank_; }

    /// This rank's groups.
    void sample(ScoredGroups& batch, int64_t number) {
        const comm::LongOperation sampling(group_, "sampling completions");
        // Of one generation: keys of prompts are shared within it, and the model keeps its recorded passes.
        generate::Decoder decoder(
            *ctx_, *model_,
            {.rows = rows_in_flight_, .context = needs()->context, .prefill_tokens = model_->sizes().tokens});
        std::vector<GroupCompletion*> asked;
        for (std::size_t g = 0; g < batch.groups.size(); ++g)
            for (std::size_t c = 0; is_own(g) && c < batch.groups[g].completions.size(); ++c) {
                decoder.add({.prompt = batch.groups[g].prompt,
                             .max_new_tokens = config_.grpo.max_completion_length,
                             .sampling = sampling_of(config_.grpo),
                             .seed = static_cast<uint64_t>(config_.training.seed),
                             .prompt_number = static_cast<uint32_t>(number * order_.groups() + static_cast<int64_t>(g)),
                             .answer_number = static_cast<uint32_t>(c),
                             .stop_ids = stops_,
                             .keeps_stop_id = true,
                             .logprobs = ops::LogprobOf::policy});
                asked.push_back(&batch.groups[g].completions[c]);
            }
        const auto ended = [&](int64_t request, const generate::Completion& answer) {
            generate::require_finite(answer, "a sampled completion");
            GroupCompletion& one = *asked[static_cast<std::size_t>(request)];
            one.ids = answer.ids;
            one.logprobs = answer.logprobs;
            one.truncated = answer.finish_reason == generate::FinishReason::length;
        };
        int64_t passes = 0, tokens = 0;
        while (interrupt_requested() == 0 && decoder.step({}, ended)) ++passes;
        stop_together("the generation batch");
        for (const GroupCompletion* one : asked) tokens += static_cast<int64_t>(one->ids.size());
        rows_in_flight_mean_ = passes > 0 ? static_cast<double>(tokens) / static_cast<double>(passes) : 0;
    }

    /// All ranks drop a generation together.
    void stop_together(const std::string& what) {
        if (const int signal = agreed_signal(group_, ctx_->device(), what); signal != 0)
            throw GenerationStopped{signal};
    }

    /// This rank's groups; all get all scores.
    void score(ScoredGroups& batch, int64_t number, int64_t step) {
        const comm::LongOperation scoring(group_, "scoring completions");
        reward::Batch own;
        std::vector<std::size_t> groups;
        nlohmann::ordered_json columns = nlohmann::ordered_json::array();
        for (std::size_t g = 0; g < batch.groups.size(); ++g) {
            if (!is_own(g)) continue;
            groups.push_back(g);
            const PromptRow& row = row_of(number * order_.groups() + static_cast<int64_t>(g));
            for (const GroupCompletion& one : batch.groups[g].completions) {
                own.prompts.push_back(nlohmann::json::parse(row.prompt));
                own.prompt_texts.push_back(*batch.groups[g].prompt_text);
                own.completions.push_back(*one.text);
                own.completion_ids.push_back(one.ids);
                columns.push_back(nlohmann::ordered_json::parse(row.columns));
            }
        }
        own.columns = columns_of(columns);
        const double epoch = static_cast<double>(number) / static_cast<double>(generations_of_epoch());
        own.trainer_state = {step - 1, config_.training.max_steps, epoch, config_.training.num_train_epochs};
        reward::Scored scored;
        if (!groups.empty()) try {
                scored = rewards_.score(own);
            } catch (const reward::GivenUp&) {
                scored.scores.assign(rewards_.names().size(), reward::Scores(own.completions.size()));
            }
        stop_together("the rewards");
        share_scores(batch, scored, groups, rewards_.names().size(), group_);
    }

    static std::vector<reward::Column> columns_of(const nlohmann::ordered_json& rows) {
        std::vector<reward::Column> columns;
        for (std::size_t i = 0; i < rows.size(); ++i)
            for (const auto& [name, value] : rows[i].items()) {
                auto found =
                    std::find_if(columns.begin(), columns.end(),
                                 [&, &wanted = name](const reward::Column& one) { return one.first == wanted; });
                if (found == columns.end())
                    found = columns.insert(columns.end(), {name, std::vector<nlohmann::json>(rows.size())});
                found->second[i] = value;
            }
        return columns;
    }

    const config::Config& config_;
    RolloutOrder order_;
    int rank_, ranks_;
    tokenizer::Tokenizer tokenizer_;
    std::vector<int32_t> stops_;
    std::vector<PromptRow> rows_;
    reward::Rewards rewards_;
    std::vector<double> weights_;
    std::vector<int64_t> ids_;  ///< of the rows
    int64_t longest_ = 0;       ///< tokens of a prompt
    std::vector<int64_t> places_;
    int64_t epoch_ = -1;  ///< that places_ are of
    comm::Group* group_ = nullptr;
    ops::Context* ctx_ = nullptr;
    model::Model* model_ = nullptr;
    int64_t rows_in_flight_ = 0;
    double rows_in_flight_mean_ = 0;  ///< of the last generation batch, on this rank
};

}  // namespace

std::unique_ptr<GroupSource> open_sampled(const config::Config& config, const RolloutOrder& order,
                                          const session::OpenedModel& opened, int rank, int ranks) {
    return std::make_unique<Sampled>(config, order, opened, rank, ranks);
}

}  // namespace unsloth::rollouts
