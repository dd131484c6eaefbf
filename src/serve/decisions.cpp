// /v1/decisions: each question is a prompt that begins with the input, whose keys all of them share; one token's
// probabilities answer it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "serve/call.h"
#include "serve/chosen.h"
#include "serve/prompts.h"
#include "unsloth/core/error.h"
#include "unsloth/openai/decision.h"
#include "unsloth/serve/service.h"

namespace unsloth::serve {
namespace {

using openai::ApiError;
using openai::OptionLabel;

class Decision final : public Receiver {
  public:
    Decision(Call call, openai::DecisionRequest request, std::string model, double temperature,
             std::vector<std::vector<OptionLabel>> labels, openai::DecisionUsage usage)
        : call_(std::move(call)),
          request_(std::move(request)),
          model_(std::move(model)),
          temperature_(temperature),
          labels_(std::move(labels)),
          usage_(usage),
          weights_(labels_.size()),
          left_(labels_.size()) {}

    bool token(std::size_t, const generate::Completion&) override { return false; }

    void ended(std::size_t question, const generate::Completion& answer) override {
        usage_.cached_tokens += answer.cached_tokens;
        not_finite_ = not_finite_ || answer.finish_reason == generate::FinishReason::not_finite;
        if (!answer.top.empty())
            weigh(question, answer.top.front());
        else
            cut_ = true;
        if (--left_ > 0) return;
        if (not_finite_) return call_.refuse(ApiError(500, "The model's logits are not finite.", "", "not_finite"));
        if (cut_) return call_.refuse(ApiError(503, "The service is shutting down.", "", "shutting_down"));
        call_.send(200, openai::decision_text(request_, model_, weights_, usage_));
    }

    void failed(const ApiError& why) override { call_.refuse(why); }

  private:
    void weigh(std::size_t question, const std::vector<std::pair<int32_t, float>>& logprobs) {
        std::size_t next = 0;
        for (const OptionLabel& label : labels_[question]) {
            double& weight = weights_[question].emplace_back(0);
            for (std::size_t i = 0; i < label.ids.size(); ++i)
                weight += std::exp(static_cast<double>(logprobs[next++].second));
        }
        openai::scale_weights(weights_[question], temperature_);
    }

    Call call_;
    openai::DecisionRequest request_;
    std::string model_;
    double temperature_;
    std::vector<std::vector<OptionLabel>> labels_;
    openai::DecisionUsage usage_;
    std::vector<std::vector<double>> weights_;
    std::size_t left_;
    bool not_finite_ = false, cut_ = false;
};

}  // namespace

void Service::decisions(const Call& call) {
    openai::DecisionRequest request =
        openai::parse_decision(call.request.body, {options_.vocab_size, options_.accept_unknown_fields});
    const Chosen chosen = choose(request.model);
    Job job = job_for(call.client, chosen);
    openai::DecisionUsage usage;
    std::vector<std::vector<OptionLabel>> labels;
    for (std::size_t i = 0; i < request.questions.size(); ++i) {
        const openai::DecisionQuestion& question = request.questions[i];
        openai::DecisionPrompt prompt = reader_->decision(*request.messages, question, cat("questions[", i, "]"));
        generate::Request asked = chosen.request();
        for (const OptionLabel& label : prompt.labels)
            asked.rated_ids.insert(asked.rated_ids.end(), label.ids.begin(), label.ids.end());
        asked.prompt = std::move(prompt.ids);
        if (static_cast<int64_t>(asked.prompt.size()) + 1 > engine_.context())
            throw ApiError(400,
                           cat("'questions[", i, "]' and the input have ", asked.prompt.size(),
                               " tokens, and the model's maximum context length is ", engine_.context(), "."),
                           "input", "context_length_exceeded");
        usage.input_tokens += static_cast<int64_t>(asked.prompt.size());
        ++usage.output_tokens;
        labels.push_back(std::move(prompt.labels));
        job.sequences.push_back(std::move(asked));
    }
    const auto decision = std::make_shared<Decision>(call.reply(), std::move(request), chosen.name,
                                                     chosen.decision_temperature, std::move(labels), usage);
    call.response->on_gone([this, left = std::weak_ptr<Decision>(decision)] {
        if (const std::shared_ptr<Decision> decision = left.lock()) engine_.cancel(decision);
    });
    job.receiver = decision;
    engine_.submit(std::move(job));
}

}  // namespace unsloth::serve
