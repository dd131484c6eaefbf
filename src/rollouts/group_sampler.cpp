#include "rollouts/group_sampler.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "rollouts/shared_groups.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/generate/decoder.h"
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

/// One value a completion of each column that some row has; null where its row has none.
std::vector<reward::Column> columns_of(const std::vector<const PromptRow*>& rows, int64_t completions) {
    const auto each = static_cast<std::size_t>(completions);
    std::vector<reward::Column> columns;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto row = nlohmann::ordered_json::parse(rows[i]->columns);
        for (const auto& [name, value] : row.items()) {
            auto found = std::find_if(columns.begin(), columns.end(),
                                      [&, &wanted = name](const auto& one) { return one.first == wanted; });
            if (found == columns.end())
                found = columns.insert(columns.end(), {name, std::vector<nlohmann::json>(rows.size() * each)});
            std::fill_n(found->second.begin() + static_cast<std::ptrdiff_t>(i * each), each, nlohmann::json(value));
        }
    }
    return columns;
}

}  // namespace

GroupSampler::GroupSampler(const config::Config& config, const session::OpenedModel& opened, int rank, int ranks)
    : config_(config),
      rank_(rank),
      ranks_(ranks),
      tokenizer_(opened.tokenizer()),
      stops_(session::stop_ids(tokenizer_, opened.file->spec)),
      rewards_(nlohmann::json::parse(config.grpo.rewards), settings(opened)) {
    if (stops_.empty())
        throw Error("tokenizer.no-eos",
                    "neither the model nor its tokenizer names an end token: completions would never end",
                    "Add eos_token_id to generation_config.json or config.json.");
    rewards_.start();
    weights_ = reward::given_weights(config.grpo, rewards_.names());
    if (weights_.empty()) weights_ = rewards_.weights();
}

void GroupSampler::require_columns(const std::vector<PromptRow>& rows) {
    std::set<std::string> names;
    for (const PromptRow& row : rows) {
        const auto columns = nlohmann::json::parse(row.columns);
        for (const auto& [name, ignored] : columns.items()) names.insert(name);
    }
    rewards_.require_columns({names.begin(), names.end()});
}

void GroupSampler::attach(ops::Context& ctx, model::Model& model, comm::Group* group, int64_t rows, int64_t context) {
    ctx_ = &ctx;
    model_ = &model;
    group_ = group;
    rows_in_flight_ = rows;
    context_ = context;
}

ScoredGroups GroupSampler::operator()(const Job& job) {
    ScoredGroups batch;
    for (const PromptRow* row : job.prompts)
        batch.groups.push_back(
            {.prompt = row->ids,
             .prompt_text = tokenizer_.decode(row->ids, /*skip_special=*/false),
             .completions = std::vector<GroupCompletion>(static_cast<std::size_t>(job.completions))});
    const Clock::time_point begin = Clock::now();
    sample(job, batch);
    const double rollout_seconds = seconds_from(begin);
    share_completions(batch, group_, ctx_->device(), config_.grpo.max_completion_length);
    int64_t tokens = 0;
    for (Group& group : batch.groups)
        for (GroupCompletion& one : group.completions) {
            one.text = tokenizer_.decode(one.ids, /*skip_special=*/true);
            tokens += static_cast<int64_t>(one.ids.size());
        }
    const Clock::time_point scoring = Clock::now();
    score(job, batch);
    batch.metrics.emplace_back("rows_in_flight_mean", rows_in_flight_mean_);
    batch.metrics.emplace_back("time/rollout_s", rollout_seconds);
    batch.metrics.emplace_back("time/reward_s", seconds_from(scoring));
    batch.metrics.emplace_back("rollout_tokens_per_second", static_cast<double>(tokens) / rollout_seconds);
    return batch;
}

reward::Settings GroupSampler::settings(const session::OpenedModel& opened) const {
    reward::Settings settings;
    settings.python = config_.grpo.reward_python;
    settings.workers = static_cast<int>(config_.grpo.reward_workers);
    settings.max_completion_length = config_.grpo.max_completion_length;
    settings.seed = static_cast<uint64_t>(config_.training.seed);
    settings.rank = rank_;
    settings.ranks = ranks_;
    settings.tokenizer_folder = opened.tokenizer_folder.string();
    settings.memory_gib = config_.grpo.reward_memory_gib;
    settings.give_up = [] { return interrupt_requested() != 0; };
    return settings;
}

/// This rank's groups.
void GroupSampler::sample(const Job& job, ScoredGroups& batch) {
    const comm::LongOperation sampling(group_, "sampling completions");
    // One decoder per job: prompt keys are shared within it, and the model keeps its CUDA graphs.
    generate::Decoder decoder(*ctx_, *model_,
                              {.rows = rows_in_flight_, .context = context_, .prefill_tokens = model_->sizes().tokens});
    std::vector<GroupCompletion*> asked;
    for (std::size_t g = 0; g < batch.groups.size(); ++g)
        for (std::size_t c = 0; is_own(g) && c < batch.groups[g].completions.size(); ++c) {
            decoder.add({.prompt = batch.groups[g].prompt,
                         .max_new_tokens = config_.grpo.max_completion_length,
                         .sampling = sampling_of(config_.grpo),
                         .seed = static_cast<uint64_t>(config_.training.seed),
                         .prompt_number = static_cast<uint32_t>(job.first_prompt + static_cast<int64_t>(g)),
                         .answer_number = static_cast<uint32_t>(job.first_answer + static_cast<int64_t>(c)),
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
    stop_together(job.what);
    for (const GroupCompletion* one : asked) tokens += static_cast<int64_t>(one->ids.size());
    rows_in_flight_mean_ = passes > 0 ? static_cast<double>(tokens) / static_cast<double>(passes) : 0;
}

/// All ranks drop what they sampled together.
void GroupSampler::stop_together(const std::string& what) {
    if (const int signal = agreed_signal(group_, ctx_->device(), what); signal != 0) throw GenerationStopped{signal};
}

/// This rank's groups; all get all scores.
void GroupSampler::score(const Job& job, ScoredGroups& batch) {
    const comm::LongOperation scoring(group_, "scoring completions");
    reward::Batch own;
    own.num_generations = static_cast<int>(job.completions);
    own.trainer_state = job.trainer_state;
    std::vector<std::size_t> groups;
    std::vector<const PromptRow*> rows;
    for (std::size_t g = 0; g < batch.groups.size(); ++g) {
        if (!is_own(g)) continue;
        groups.push_back(g);
        rows.push_back(job.prompts[g]);
        const auto prompt = nlohmann::json::parse(job.prompts[g]->prompt);
        for (const GroupCompletion& one : batch.groups[g].completions) {
            own.prompts.push_back(prompt);
            own.prompt_texts.push_back(*batch.groups[g].prompt_text);
            own.completions.push_back(*one.text);
            own.completion_ids.push_back(one.ids);
        }
    }
    own.columns = columns_of(rows, job.completions);
    reward::Scored scored;
    if (!groups.empty()) try {
            scored = rewards_.score(own);
        } catch (const reward::GivenUp&) {
            scored.scores.assign(rewards_.names().size(), reward::Scores(own.completions.size()));
        }
    stop_together("the rewards");
    share_scores(batch, scored, groups, rewards_.names().size(), group_);
}

}  // namespace unsloth::rollouts
