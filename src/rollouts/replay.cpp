#include "unsloth/rollouts/replay.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/json.h"
#include "unsloth/data/batch.h"
#include "unsloth/rollouts/generation.h"

namespace unsloth::rollouts {
namespace {

using ReplayJson = nlohmann::ordered_json;

/// One line of the file.
class ReplayLine {
  public:
    ReplayLine(const config::Config& config, const ReplayBounds& bounds, std::string where)
        : config_(config), bounds_(bounds), where_(std::move(where)) {}

    Group group(const ReplayJson& line) const {
        Group group;
        group.prompt = ids(member(line, "prompt_ids"), "prompt_ids");
        const ReplayJson& completions = member(line, "completions");
        if (!completions.is_array() || static_cast<int64_t>(completions.size()) != config_.grpo.num_generations)
            fail(cat("expected ", config_.grpo.num_generations, " completions (grpo.num_generations), found ",
                     completions.is_array() ? completions.size() : 0));
        for (const ReplayJson& completion : completions) group.completions.push_back(completion_of(completion));
        for (const GroupCompletion& one : group.completions) {
            const auto length = static_cast<int64_t>(group.prompt.size() + one.ids.size());
            if (length > bounds_.max_seq_length)
                fail(cat("a prompt and its completion have ", length, " tokens, model.max_seq_length is ",
                         bounds_.max_seq_length));
        }
        return group;
    }

    /// Adds the line's rewards; of the first line names are taken.
    void add_scores(const ReplayJson& line, std::vector<std::string>& names,
                    std::vector<reward::Scores>& scores) const {
        const ReplayJson& rewards = member(line, "rewards");
        if (!rewards.is_object() || rewards.empty()) fail("\"rewards\" is no object of lists");
        if (names.empty()) {
            for (const auto& [name, values] : rewards.items()) names.push_back(name);
            scores.resize(names.size());
        }
        if (rewards.size() != names.size()) fail("its rewards are not those of the first line");
        for (std::size_t k = 0; k < names.size(); ++k) {
            const auto found = rewards.find(names[k]);
            if (found == rewards.end()) fail(cat("it has no reward ", names[k], ", which the first line has"));
            if (!found->is_array() || static_cast<int64_t>(found->size()) != config_.grpo.num_generations)
                fail(cat("reward ", names[k], ": expected ", config_.grpo.num_generations, " numbers or nulls"));
            for (const ReplayJson& value : *found) scores[k].push_back(score(value, names[k]));
        }
    }

  private:
    [[noreturn]] void fail(const std::string& what) const { throw Error("data.bad-rollouts", cat(where_, ": ", what)); }

    const ReplayJson& member(const ReplayJson& object, const char* key) const {
        if (!object.is_object()) fail("not a JSON object");
        const auto found = object.find(key);
        if (found == object.end()) fail(cat("there is no \"", key, "\""));
        return *found;
    }

    std::vector<int32_t> ids(const ReplayJson& list, const char* what) const {
        if (!list.is_array() || list.empty()) fail(cat("\"", what, "\" is no list of token ids, or empty"));
        std::vector<int32_t> ids;
        for (const ReplayJson& id : list) {
            if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= bounds_.vocab_size)
                fail(cat("\"", what, "\": ", id.dump(), " is no token id of a vocabulary of ", bounds_.vocab_size));
            ids.push_back(id.get<int32_t>());
        }
        return ids;
    }

    GroupCompletion completion_of(const ReplayJson& object) const {
        GroupCompletion completion{.ids = ids(member(object, "ids"), "ids"),
                                   .truncated = truncated(member(object, "truncated"))};
        if (static_cast<int64_t>(completion.ids.size()) > config_.grpo.max_completion_length)
            fail(cat("a completion has ", completion.ids.size(), " tokens, grpo.max_completion_length is ",
                     config_.grpo.max_completion_length));
        const auto logprobs = object.find("logprobs");
        if (logprobs == object.end() || logprobs->is_null()) return completion;
        if (!logprobs->is_array() || logprobs->size() != completion.ids.size())
            fail(cat("\"logprobs\": expected ", completion.ids.size(), " numbers, one a token"));
        for (const ReplayJson& value : *logprobs) completion.logprobs.push_back(logprob(value));
        return completion;
    }

    bool truncated(const ReplayJson& value) const {
        if (!value.is_boolean()) fail("\"truncated\" is neither true nor false");
        return value.get<bool>();
    }
    float logprob(const ReplayJson& value) const {
        if (value.is_null()) return std::numeric_limits<float>::quiet_NaN();
        if (!value.is_number() || value.get<double>() > 0 || !std::isfinite(value.get<double>()))
            fail(cat("\"logprobs\": ", value.dump(), " is no logarithm of a probability"));
        return value.get<float>();
    }
    std::optional<double> score(const ReplayJson& value, const std::string& name) const {
        if (value.is_null()) return std::nullopt;
        if (!value.is_number() || !std::isfinite(value.get<double>()))
            fail(cat("reward ", name, ": ", value.dump(), " is neither a number nor null"));
        return value.get<double>();
    }

    const config::Config& config_;
    const ReplayBounds& bounds_;
    std::string where_;
};

class Replay final : public GroupSource {
  public:
    Replay(const config::Config& config, const RolloutOrder& order, const ReplayBounds& bounds)
        : path_(*config.grpo.replay_rollouts), order_(order) {
        const int64_t steps = config.training.max_steps;
        read(config, bounds,
             steps < 0 ? std::numeric_limits<int64_t>::max() : order.generations(steps) * order.groups());
        const int64_t whole = generations_of_epoch(), wanted = steps < 0 ? 1 : order.generations(steps);
        if (whole < wanted || order.steps(whole) < 1)
            throw Error("data.bad-rollouts", cat(path_.string(), ": ", groups_.size(), " groups are ", whole,
                                                 " whole generation batches of ", order.groups(), " groups, and ",
                                                 steps < 0 ? cat("an optimizer step takes ", order.generations(1))
                                                           : cat("training.max_steps ", steps, " takes ", wanted)));
        weights_ = reward::given_weights(config.grpo, names_);
        require_logprobs(config);
    }

    ScoredGroups generation(int64_t number, int64_t) override {
        ScoredGroups batch;
        const auto first = number * order_.groups();
        UNSLOTH_CHECK(first + order_.groups() <= static_cast<int64_t>(groups_.size()), "generation ", number);
        batch.groups.assign(groups_.begin() + first, groups_.begin() + first + order_.groups());
        for (const reward::Scores& of_all : scores_)
            batch.scores.emplace_back(of_all.begin() + number * order_.rows(),
                                      of_all.begin() + (number + 1) * order_.rows());
        return batch;
    }
    const std::vector<std::string>& reward_names() const override { return names_; }
    std::vector<double> reward_weights() const override { return weights_; }
    int64_t generations_of_epoch() const override { return lines_ / order_.groups(); }
    bool repeats() const override { return false; }

    data::Dataset longest_rows() const override {
        std::vector<data::Sample> samples;
        for (const Group& group : groups_)
            for (const GroupCompletion& one : group.completions)
                samples.push_back(sample_of(group.prompt, one.ids, static_cast<int64_t>(samples.size())));
        return data::Dataset::from_samples(samples);
    }
    std::string fingerprint() const override { return hash_.hex(); }
    std::string describe() const override {
        return cat(groups_.size(), " groups of ", order_.group_size, " completions, replayed from ", path_.string());
    }

  private:
    void read(const config::Config& config, const ReplayBounds& bounds, int64_t most) {
        std::ifstream file(path_);
        if (!file)
            throw Error("data.bad-rollouts", cat(path_.string(), ": the file of rollouts cannot be read"),
                        "Check grpo.replay_rollouts.");
        std::string text;
        for (int64_t line = 1; std::getline(file, text); ++line) {
            hash_.add_field(text);  // also lines that are not used: a resumed run may have more steps
            if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
            ++lines_;
            if (static_cast<int64_t>(groups_.size()) == most) continue;
            const std::string where = cat(path_.string(), ":", line);
            const auto json = parse_json<ReplayJson>(text, where);
            const ReplayLine reader(config, bounds, where);
            groups_.push_back(reader.group(json));
            reader.add_scores(json, names_, scores_);
        }
    }

    /// Of the sampler, where something is measured against them.
    void require_logprobs(const config::Config& config) const {
        const config::GrpoOptions& grpo = config.grpo;
        const bool corrects = grpo.sampler_correction != spec::SamplerCorrection::none,
                   old = grpo.old_logps == config::OldLogProbs::sampler;
        if (!corrects && !old) return;
        for (const Group& group : groups_)
            for (const GroupCompletion& one : group.completions) {
                bool lacks = one.logprobs.empty();
                for (const float value : one.logprobs) lacks = lacks || (old && std::isnan(value));
                if (lacks)
                    throw Error("option.conflict",
                                cat(corrects ? "grpo.sampler_correction" : "grpo.old_logps sampler",
                                    " needs the sampler's log-probabilities, and completions in ", path_.string(),
                                    " have none"),
                                corrects ? "Set it to none." : "Set it to trainer.");
            }
    }

    std::filesystem::path path_;
    RolloutOrder order_;
    std::vector<Group> groups_;  ///< that are used
    int64_t lines_ = 0;          ///< groups of the file
    std::vector<std::string> names_;
    std::vector<reward::Scores> scores_;
    std::vector<double> weights_;
    ContentHash hash_;
};

}  // namespace

std::unique_ptr<GroupSource> open_replay(const config::Config& config, const RolloutOrder& order,
                                         const ReplayBounds& bounds) {
    return std::make_unique<Replay>(config, order, bounds);
}

}  // namespace unsloth::rollouts
