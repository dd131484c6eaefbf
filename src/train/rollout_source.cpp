#include "unsloth/train/rollout_source.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "train/completion_rows.h"
#include "unsloth/config/policy_rule.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/data/token_order.h"
#include "unsloth/report/run.h"
#include "unsloth/rollouts/sampled_groups.h"
#include "unsloth/train/json_number.h"
#include "unsloth/train/run_record.h"

namespace unsloth::train {
namespace {

using rollouts::Generation;
using SampledPointer = std::shared_ptr<const data::SampledRow>;

nlohmann::ordered_json floats_json(const std::vector<float>& values) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const float value : values) list.push_back(number(static_cast<double>(value)));
    return list;
}

std::vector<float> floats_of(const nlohmann::ordered_json& list) {
    std::vector<float> values;
    for (const auto& value : list)
        values.push_back(value.is_null() ? std::numeric_limits<float>::quiet_NaN() : value.get<float>());
    return values;
}

nlohmann::ordered_json row_json(const data::SampledRow& row) {
    return {{"prompt_ids", row.prompt},
            {"ids", row.ids},
            {"logprobs", floats_json(row.sampler)},
            {"truncated", row.truncated},
            {"counts", row.counts},
            {"advantage", row.advantage},
            {"old_logprobs", floats_json(row.old_logps)},
            {"reference_logprobs", floats_json(row.reference)}};
}

SampledPointer row_of(const nlohmann::ordered_json& json) {
    return std::make_shared<data::SampledRow>(data::SampledRow{.prompt = json.at("prompt_ids"),
                                                               .ids = json.at("ids"),
                                                               .sampler = floats_of(json.at("logprobs")),
                                                               .truncated = json.at("truncated"),
                                                               .counts = json.at("counts"),
                                                               .advantage = json.at("advantage"),
                                                               .old_logps = floats_of(json.at("old_logprobs")),
                                                               .reference = floats_of(json.at("reference_logprobs"))});
}

/// The mean of each metric over generations that begin in one step, of what is defined; num_tokens is the last one's.
rollouts::Metrics joined(const std::vector<rollouts::Metrics>& of_generations) {
    if (of_generations.empty()) return {};
    rollouts::Metrics result = of_generations.back();
    for (std::size_t m = 0; m < result.size(); ++m) {
        if (result[m].first == "num_tokens") continue;
        double sum = 0, count = 0;
        for (const rollouts::Metrics& metrics : of_generations) {
            const double value = metrics.size() == result.size() ? metrics[m].second : result[m].second;
            if (std::isnan(value)) continue;
            sum += value;
            ++count;
        }
        result[m].second = count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
    }
    return result;
}

/// Whether the losses of all micro-batches of a generation are divided alike, so that a pass may have rows of several.
bool divides_alike(const config::GrpoOptions& options) {
    return options.loss_type != spec::PolicyLossType::bnpo && options.entropy_coef == 0;
}

}  // namespace

RolloutSource::RolloutSource(const RunSetup& setup, TrainingState& state)
    : setup_(setup), state_(state), order_(*setup.rollout_order()) {
    next_micro_ = order_.first_micro(state.progress.step + 1);
    setup.groups()->attach(*state.ctx, *state.model, setup.group(), setup.rows_in_flight());
    if (setup.resume()) restore();
}

RolloutSource::~RolloutSource() = default;

rollouts::PolicyScorer RolloutSource::scorer() const {
    return {*state_.ctx,
            *state_.model,
            {setup_.group(), setup_.data_rank(), setup_.data_ranks()},
            options(),
            setup_.loader().pass_rows(),
            order_.of_sample};
}

/// By the adapter as it was at the start, or without any.
rollouts::TokenScores RolloutSource::reference_scores(std::span<const SampledPointer> rows) const {
    if (!state_.initial_values.defined()) return scorer()(rows, model::PolicyScope::base);
    const at::Tensor values_P = state_.model->parameters()->values_P, present = values_P.cpu().clone();
    const auto put = [&](const at::Tensor& values) {
        values_P.copy_(values);
        state_.model->parameters_changed();
    };
    put(state_.initial_values);
    rollouts::TokenScores scores = scorer()(rows);
    put(present);
    return scores;
}

rollouts::GenerationScores RolloutSource::scores_of(const rollouts::ScoredGroups& groups) const {
    rollouts::GenerationScores scores;
    const std::vector<SampledPointer> rows = rollouts::rows_of(options(), groups);
    if (options().old_logps == config::OldLogProbs::sampler)
        for (const SampledPointer& row : rows) scores.old_logps.push_back(row->sampler);
    else if (config::needs_old_logps(options(), order_.accumulation))
        scores.old_logps = scorer()(rows).logps;
    if (options().beta > 0) scores.reference = reference_scores(rows).logps;
    return scores;
}

rollouts::ScoredGroups RolloutSource::groups_of(int64_t number, int64_t step) const {
    try {
        return setup_.groups()->generation(number, step);
    } catch (const rollouts::GenerationStopped& stopped) {
        throw StoppedBySignal{stopped.signal};
    }
}

RolloutSource::Use RolloutSource::generation(int64_t number, int64_t step) {
    if (in_use_ && in_use_->number == number) return in_use_;
    const rollouts::ScoredGroups groups = groups_of(number, step);
    const auto begin = std::chrono::steady_clock::now();
    rollouts::GenerationScores scores = scores_of(groups);
    const double logps_seconds = seconds_since(begin);
    auto made = std::make_shared<Generation>(
        rollouts::make_generation(options(), *setup_.groups(), groups, number, std::move(scores)));
    num_tokens_ += made->all_tokens;
    made->metrics.emplace_back("time/logps_s", logps_seconds);
    made->metrics.insert(made->metrics.begin(), {"num_tokens", static_cast<double>(num_tokens_)});
    if (options().log_completions && setup_.leads()) log_completions(groups, *made, step);
    in_use_ = std::move(made);
    return in_use_;
}

void RolloutSource::log_completions(const rollouts::ScoredGroups& groups, const Generation& generation, int64_t step) {
    if (!completions_)
        completions_ = std::make_unique<RowFile>(setup_.config().training.output_dir, report::completions_file,
                                                 setup_.first_step());
    add_completions(*completions_, step, *setup_.groups(), groups, generation.advantages(), {});
}

/// The step's rows with what their losses need, of all ranks.
std::shared_ptr<data::PolicyStep> RolloutSource::compose(int64_t step) {
    auto policy = std::make_shared<data::PolicyStep>();
    std::vector<rollouts::Metrics> begun;
    units_.clear();
    bool fresh = false;  // a generation that began in this step, and what follows it
    for (int64_t k = 0; k < order_.accumulation; ++k) {
        const rollouts::RolloutOrder::Place place = order_.place(order_.first_micro(step) + k);
        const Use used = generation(place.generation, step);
        if (place.begins) begun.push_back(used->metrics);
        fresh = fresh || place.begins;
        spec::PolicyBatchOptions micro = config::policy_batch_options(
            options(), static_cast<double>(order_.accumulation), static_cast<double>(order_.slices));
        micro.divisors.rows = static_cast<double>(order_.rows_each);
        micro.divisors.generation_tokens = used->tokens;
        if (units_.empty() || place.slice == 0 || !divides_alike(options())) units_.emplace_back();
        micro.divisors.tokens = 0;
        for (int64_t r = place.slice * order_.rows_each; r < (place.slice + 1) * order_.rows_each; ++r) {
            data::PolicyRow row{.sampled = used->rows[static_cast<std::size_t>(r)], .fresh = fresh};
            row.passed =
                !(options().drop_zero_groups && used->zero_groups[static_cast<std::size_t>(r / order_.group_size)]);
            if (row.sampled->counts) micro.divisors.tokens += static_cast<double>(row.sampled->ids.size());
            if (is_own(r - place.slice * order_.rows_each)) units_.back().push_back(policy->rows.size());
            policy->rows.push_back(std::move(row));
        }
        policy->micro.push_back(micro);
    }
    policy->metrics = joined(begun);
    return policy;
}

/// grpo.top_entropy_quantile: by the policy as it is before the step.
void RolloutSource::choose_by_entropy(data::PolicyStep& policy) const {
    std::vector<SampledPointer> rows;
    for (const data::PolicyRow& row : policy.rows) rows.push_back(row.sampled);
    const std::vector<std::vector<float>> entropies = scorer()(rows).entropies;
    for (std::size_t k = 0; k < policy.micro.size(); ++k) {
        const std::size_t first = k * policy.rows_each(), end = first + policy.rows_each();
        std::vector<double> counted;
        for (std::size_t r = first; r < end; ++r)
            if (rows[r]->counts) counted.insert(counted.end(), entropies[r].begin(), entropies[r].end());
        const double least = spec::entropy_threshold(std::move(counted), options().top_entropy_quantile);
        for (std::size_t r = first; r < end; ++r)
            for (const float entropy : entropies[r])
                policy.rows[r].chosen.push_back(static_cast<double>(entropy) >= least ? 1 : 0);
    }
}

/// A pass over this rank's rows at these places of the step; empty where none is worth one.
data::Batch RolloutSource::pass_over(const data::PolicyStep& policy, std::span<const std::size_t> places) const {
    std::vector<SampledPointer> rows;
    std::vector<std::size_t> passed;
    for (const std::size_t place : places) {
        if (!policy.rows[place].passed) continue;
        rows.push_back(policy.rows[place].sampled);
        passed.push_back(place);
    }
    data::Batch batch =
        rows.empty() ? data::Batch{} : data::make_batch(rollouts::samples_of(rows, passed, order_.of_sample));
    if (setup_.loader().options().order_tokens) batch.token_order = data::sort_tokens(batch.ids_T);
    return batch;
}

/// Of a micro-batch of all ranks.
bool RolloutSource::is_own(int64_t row) const {
    return row / setup_.config().training.per_device_train_batch_size == setup_.data_rank();
}

data::StepBatch RolloutSource::next(int64_t step) {
    UNSLOTH_CHECK(order_.first_micro(step) == next_micro_, "step ", step, " is not the next one");
    const std::shared_ptr<data::PolicyStep> policy = compose(step);
    if (options().top_entropy_quantile < 1) choose_by_entropy(*policy);
    next_micro_ += order_.accumulation;
    data::StepBatch batch;
    const auto each = static_cast<std::size_t>(setup_.loader().pass_rows());
    for (const std::vector<std::size_t>& unit : units_)
        for (std::size_t first = 0; first < unit.size(); first += each)
            batch.micro.push_back(
                pass_over(*policy, std::span(unit).subspan(first, std::min(each, unit.size() - first))));
    for (const data::PolicyRow& row : policy->rows) {
        batch.labels += row.sampled->counts ? static_cast<int64_t>(row.sampled->ids.size()) : 0;
        batch.tokens += static_cast<int64_t>(row.sampled->prompt.size() + row.sampled->ids.size());
    }
    batch.rows = static_cast<int64_t>(policy->rows.size());
    const double of_epoch =
        static_cast<double>(setup_.groups()->generations_of_epoch() * order_.slices * order_.passes);
    batch.epoch = static_cast<double>(next_micro_) / of_epoch;
    batch.epoch_index = static_cast<uint32_t>(static_cast<double>(order_.first_micro(step)) / of_epoch);
    batch.policy = policy;
    return batch;
}

std::string RolloutSource::progress() const {
    nlohmann::ordered_json json{{"version", 1}, {"num_tokens", num_tokens_}, {"generation", nullptr}};
    if (const auto place = order_.place(next_micro_); !place.begins && in_use_) {
        nlohmann::ordered_json rows = nlohmann::ordered_json::array();
        for (const SampledPointer& row : in_use_->rows) rows.push_back(row_json(*row));
        json["generation"] = {{"number", in_use_->number},
                              {"tokens", in_use_->tokens},
                              {"zero_groups", in_use_->zero_groups},
                              {"rows", std::move(rows)}};
    }
    return json.dump() + "\n";
}

/// A run that stopped within a generation batch resumes with that one, to the last bit.
void RolloutSource::restore() {
    const std::filesystem::path file = setup_.resume()->folder / rollout_file;
    const auto json = parse_json<nlohmann::ordered_json>(read_file(file), file.string());
    const auto place = order_.place(next_micro_);
    try {
        num_tokens_ = json.at("num_tokens");
        const auto& saved = json.at("generation");
        if (place.begins) return;
        auto made =
            std::make_shared<Generation>(Generation{.number = saved.at("number"), .tokens = saved.at("tokens")});
        made->zero_groups = saved.at("zero_groups").get<std::vector<bool>>();
        for (const auto& row : saved.at("rows")) made->rows.push_back(row_of(row));
        if (made->number != place.generation || static_cast<int64_t>(made->rows.size()) != order_.rows())
            throw Error("checkpoint.damaged-file",
                        cat(file.string(), " is of another step or another generation batch"));
        in_use_ = std::move(made);
    } catch (const nlohmann::json::exception& wrong) {
        throw Error("checkpoint.damaged-file", cat(file.string(), ": ", wrong.what()),
                    "It was changed since it was written.");
    }
}

}  // namespace unsloth::train
