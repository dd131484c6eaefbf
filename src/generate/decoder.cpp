#include "unsloth/generate/decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "generate/cached_pass.h"
#include "generate/rated_rows.h"
#include "generate/uploaded.h"
#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/generate/prompt_images.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::generate {
namespace {

/// With dynamic RoPE a token's keys depend on the longest position of the pass: sequences are on their own, whole
/// prompts too.
bool is_dynamic(const model::Model& model) {
    return model.spec().has_rope(spec::RopeSpec::Type::dynamic);
}

SchedulerLimits limits_of(const model::Model& model, const DecoderOptions& options) {
    const model::ActivationSizes& sizes = model.sizes();
    const auto least = [](int64_t asked, int64_t planned) { return asked > 0 ? std::min(asked, planned) : planned; };
    SchedulerLimits limits;
    limits.pass_tokens = least(options.pass_tokens, std::min(sizes.tokens, sizes.longest));
    limits.rows = least(options.rows, std::min({sizes.segments, sizes.head_rows, limits.pass_tokens}));
    limits.context = least(options.context, sizes.longest_context());
    limits.prefill_tokens = options.prefill_tokens;
    limits.prefill_policy = options.prefill_policy;
    limits.segments = sizes.segments;
    if (sizes.patches > 0 && model.spec().vision->tiles) limits.image_slots = sizes.image_tokens;
    if (sizes.decoding_rows > 0) limits.rows = std::min(limits.rows, sizes.decoding_rows);
    if (is_dynamic(model)) limits.rows = 1, limits.shares_prefixes = false;
    if (model.spec().delta) {
        limits.keeps_states = true;
        limits.snapshots = sizes.state_places() - limits.rows;
        limits.keeps_prompts = options.keeps_prompts;
    }
    return limits;
}

/// Which tokens each of these rows allows.
void constrain(const std::vector<std::pair<std::size_t, TokenConstraint*>>& constrained,
               std::vector<ops::RowSampling>& rows) {
    parallel_ranges(static_cast<int64_t>(constrained.size()), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
            rows[constrained[i].first].allowed = constrained[i].second->allowed();
    });
}

}  // namespace

int64_t bucket_of(int64_t rows) {
    if (rows <= 2) return rows;
    const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows - 1)) / 2);
    return (rows + step - 1) / step * step;
}

Decoder::Decoder(ops::Context& ctx, model::Model& model, const DecoderOptions& options)
    : ctx_(ctx),
      model_(model),
      pads_(ctx.is_cuda() || options.pads),
      context_(limits_of(model, options).context),
      scheduler_(limits_of(model, options), ops::pages_of(model.sizes().cache_tokens), ops::page_tokens) {
    if (!ctx.deterministic) on_pass_ = options.on_pass;
}

int64_t Decoder::add(Request request) {
    if (is_dynamic(model_) && static_cast<int64_t>(request.prompt.size()) > model_.sizes().tokens)
        throw Error("model.too-many-positions",
                    cat("with dynamic RoPE a prompt of ", request.prompt.size(), " tokens goes in at once, passes ",
                        "have at most ", model_.sizes().tokens),
                    "Raise --max_num_batched_tokens.");
    UNSLOTH_CHECK(request.adapter >= -1 && request.adapter < model_.sizes().adapters, "adapter ", request.adapter,
                  " of ", model_.sizes().adapters);
    if (const int64_t patches = request.images ? request.images->patches() : 0; patches > model_.sizes().patches)
        throw Error("image.too-large",
                    cat("an image has ", patches, " patches, and ", model_.sizes().patches, " were planned for"),
                    "Make the image smaller.");
    UNSLOTH_CHECK(request.logprobs == ops::LogprobOf::model || request.sampling.temperature > 0,
                  "a policy of temperature ", request.sampling.temperature);
    UNSLOTH_CHECK(!request.prompt_logprobs || model_.sizes().head_rows >= model_.sizes().tokens,
                  "logits of whole prompts were not planned");
    spec::Sampling unstopped = request.sampling;
    for (const int32_t id : request.stop_ids)
        unstopped.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
    Completion begun;
    if (request.prompt_logprobs) begun.prompt.resize(request.prompt.size() - 1);
    const bool differs = request.min_new_tokens > 0 && !request.stop_ids.empty();
    const int64_t number = scheduler_.add(std::move(request));
    answers_[number] = std::move(begun);
    if (differs) unstopped_[number] = std::move(unstopped);
    return number;
}

/// Keys of other weights, and pages that another decoder wrote to, are not found any more.
void Decoder::forget_others_keys() {
    // Where adapters come and go, Request::prefix names what a row's keys are of.
    const uint64_t weights = model_.sizes().adapters > 0 ? 0 : model_.policy_version();
    if (claim_ == model_.cache_claim() && weights_ == weights) return;
    scheduler_.use_policy(++policy_);
    claim_ = model_.claim_cache();
    weights_ = weights;
}

/// What was issued for a sequence that is gone is for nothing.
void Decoder::forget(Issued& issued, const Sequence* gone) {
    for (Sequence*& row : issued.rows)
        if (row == gone) row = nullptr;
    for (Issued::Rated& rated : issued.rated)
        if (rated.of == gone) rated.of = nullptr;
}

void Decoder::cancel(int64_t request) {
    const Sequence* const dropped = scheduler_.drop(request);
    if (issued_ && dropped != nullptr) forget(*issued_, dropped);
    answers_.erase(request);
    unstopped_.erase(request);
}

bool Decoder::step(const OnToken& on_token, const OnEnd& on_end) {
    forget_others_keys();
    if (!issued_) {
        const std::vector<ScheduledChunk> parts = scheduler_.next_pass();
        if (parts.empty()) return false;
        issued_ = issue(parts, {});
        scheduler_.computed(parts);
    }
    auto ahead = issue_async(*issued_);
    const Issued now = std::exchange(issued_, std::nullopt).value();
    if (now.there != nullptr) now.there->synchronize();
    const double ms = ms_of(now);
    if (now.is_timed) on_pass_(now.work, ms);
    note_rated(now);
    for (std::size_t row = 0; row < now.rows.size(); ++row) {
        const float logprob = now.logprobs.const_data_ptr<float>()[row];
        if (now.rows[row] == nullptr) continue;
        const ops::SampledToken chosen{now.ids.const_data_ptr<int32_t>()[row], logprob};
        const Sequence* const sequence = now.rows[row];
        if (take(*now.rows[row], chosen, on_token, on_end) || !ahead) continue;
        std::erase_if(ahead->second, [&](const ScheduledChunk& part) { return part.sequence == sequence; });
        forget(ahead->first, sequence);
    }
    if (ahead) {
        scheduler_.computed(ahead->second);
        issued_ = std::move(ahead->first);
    }
    return true;
}

std::vector<Completion> Decoder::answer(std::vector<Request> requests, const OnToken& on_token, const OnEnd& on_end) {
    std::vector<Completion> answers(requests.size());
    int64_t first = -1;
    for (Request& request : requests) {
        const int64_t number = add(std::move(request));
        if (first < 0) first = number;
    }
    const auto see = [&](int64_t number, int32_t id) { return !on_token || on_token(number - first, id); };
    const auto end = [&](int64_t number, const Completion& answer) {
        if (on_end) on_end(number - first, answer);
        answers[static_cast<std::size_t>(number - first)] = answer;
    };
    while (step(see, end)) {
    }
    return answers;
}

/// The ids of a pass' first tokens, which the one before chooses. With rows added to a pass of such tokens alone: the
/// last one's too.
at::Tensor Decoder::ids_ahead(const std::vector<ScheduledChunk>& parts, int64_t tokens, const at::Tensor& ids) const {
    std::vector<int64_t> from;
    for (const ScheduledChunk& part : parts)
        if (part.ahead()) from.push_back(part.from);
    if (from.empty()) return {};
    if (from.size() == parts.size()) from.resize(static_cast<std::size_t>(tokens), from.back());
    bool is_all = static_cast<int64_t>(from.size()) == ids.size(0);
    for (std::size_t i = 0; i < from.size(); ++i) is_all = is_all && from[i] == static_cast<int64_t>(i);
    if (is_all) return ids;
    return ids.index_select(0, uploaded(from, ctx_.device()));
}

/// On a GPU by its own clock: the host may have issued the next pass, or recorded it, before it looks again.
double Decoder::ms_of(const Issued& pass) {
    const Clock::time_point came = Clock::now(), waited = std::max(pass.begun, std::exchange(tokens_came_, came));
    if (pass.began != nullptr) return pass.there->ms_since(*pass.began);
    return std::chrono::duration<double, std::milli>(came - waited).count();
}

/// Asynchronous: the event `there` follows the copies.
void Decoder::copy_to_host(Issued& issued) const {
    for (at::Tensor* values :
         {&issued.ids, &issued.logprobs, &issued.rated_logprobs, &issued.top_ids, &issued.top_logprobs}) {
        if (!values->defined()) continue;
        const at::Tensor there = at::empty(values->sizes(), values->options().device(at::kCPU).pinned_memory(true));
        there.copy_(*values, /*non_blocking=*/true);
        *values = there;
    }
    issued.there = std::make_shared<ops::Event>(ctx_, ops::Event::Kind::timed);
    issued.there->record();
}

/// The rows of logits that are read: prompts' tokens that are rated, and those that a token is chosen from.
Decoder::ChosenRows Decoder::chosen_rows(const std::vector<ScheduledChunk>& parts, Issued& issued) const {
    static const spec::Sampling greedy;  // of rows whose token is known
    ChosenRows chosen;
    auto& [rows, constrained] = chosen;
    for (const ScheduledChunk& part : parts) {
        Sequence& s = *part.sequence;
        const Request& request = s.request;
        for (int64_t t = s.cached; t < s.cached + part.count; ++t) {
            if (!rates_prompt_at(s, t)) continue;
            issued.rated.push_back({rows.size(), &s, static_cast<std::size_t>(t) + 1, request.top_logprobs});
            rows.push_back({&greedy, {}, 0, {}});
            issued.rows.push_back(nullptr);
        }
        if (!part.chooses()) continue;
        const std::size_t prompt = request.prompt.size(), position = s.ids.size() - prompt + (part.ahead() ? 1 : 0);
        const auto unstopped = unstopped_.find(s.number);
        const bool may_stop = unstopped == unstopped_.end() || static_cast<int64_t>(position) >= request.min_new_tokens;
        if (!request.rated_ids.empty())
            issued.rated.push_back(
                {rows.size(), nullptr, 0, static_cast<int64_t>(request.rated_ids.size()), request.rated_ids});
        else if (request.top_logprobs > 0)
            issued.rated.push_back({rows.size(), nullptr, 0, request.top_logprobs});
        rows.push_back({may_stop ? &request.sampling : &unstopped->second,
                        s.ids,
                        prompt,
                        {request.seed, request.prompt_number, request.answer_number, static_cast<uint32_t>(position)},
                        request.logprobs});
        if (request.constraint) constrained.emplace_back(rows.size() - 1, request.constraint.get());
        issued.rows.push_back(&s);
    }
    return chosen;
}

/// `ids`: those that the pass before chooses, where parts wait for them.
Decoder::Issued Decoder::issue(const std::vector<ScheduledChunk>& parts, const at::Tensor& ids) {
    Issued issued;
    issued.begun = Clock::now();
    if (on_pass_) issued.work = PassWork::of(parts);
    if (on_pass_ && ctx_.is_cuda()) {
        issued.began = std::make_shared<ops::Event>(ctx_, ops::Event::Kind::timed);
        issued.began->record();
    }
    ChosenRows chosen = chosen_rows(parts, issued);
    std::vector<ops::RowSampling>& rows = chosen.rows;
    const auto count = static_cast<int64_t>(rows.size());
    const auto on_device = at::TensorOptions().device(ctx_.device());
    issued.ids_C = at::empty({count}, on_device.dtype(at::kInt));
    issued.logprobs_C = at::empty({count}, on_device.dtype(at::kFloat));
    // Where one adapter is all there is, and all have it, nothing has to be said.
    const auto has_first = [](const ScheduledChunk& part) { return part.sequence->request.adapter == 0; };
    const int64_t adapters = model_.sizes().adapters;
    const bool names_adapters = adapters > 1 || (adapters == 1 && !std::all_of(parts.begin(), parts.end(), has_first));
    model::CachedPass pass = pass_of(parts, context_, names_adapters);
    if (const int64_t slots = scheduler_.image_slots(); slots > 0)
        see_slots(parts, model_.spec().vision.value(), slots, pass);
    // Recordings are for shapes that come again: rows that leave do not make another one.
    if (pads_ && !pass.sight)
        pad(pass, std::min(model_.sizes().segments, model_.sizes().tokens), ops::pages_of(model_.sizes().cache_tokens));
    if (ids.defined()) pass.ids = ids_ahead(parts, pass.batch.tokens(), ids);
    const int64_t recorded = model_.counts().recorded;
    RatedRows rated;
    model_.forward_with_kv_cache(pass, [&](int64_t first, const at::Tensor& logits_CV) {
        const int64_t n = logits_CV.size(0);
        if (first == 0) constrain(chosen.constrained, rows);  // while a GPU computes the logits
        for (const Issued::Rated& row : issued.rated)
            if (const auto at = static_cast<int64_t>(row.row) - first; at >= 0 && at < n)
                rated.add(at, row.of == nullptr ? 0 : row.of->ids[row.position], row.top, row.listed);
        rated.rate(logits_CV);  // before penalties overwrite them
        ops::sample_tokens(ctx_, logits_CV,
                           std::span(rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
                           issued.ids_C.narrow(0, first, n), issued.logprobs_C.narrow(0, first, n));
    });
    const bool waits =
        std::any_of(parts.begin(), parts.end(), [](const ScheduledChunk& part) { return part.decodes(); });
    issued.is_timed =
        on_pass_ && waits && pass.batch.images.empty() && !pass.sight && model_.counts().recorded == recorded;
    issued.ids = issued.ids_C, issued.logprobs = issued.logprobs_C;
    if (!issued.rated.empty()) rated.take(issued.rated_logprobs, issued.top_ids, issued.top_logprobs);
    if (ctx_.is_cuda()) copy_to_host(issued);
    return issued;
}

/// The pass after `before`, and its parts: nothing where that has to wait for the tokens. Penalties and constraints ask
/// what they are.
std::optional<std::pair<Decoder::Issued, std::vector<ScheduledChunk>>> Decoder::issue_async(const Issued& before) {
    for (const Sequence* s : before.rows) {
        if (s == nullptr) continue;
        const spec::Sampling& sampling = s->request.sampling;
        if (s->request.constraint || sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
            sampling.frequency_penalty != 0)
            return std::nullopt;
    }
    std::vector<ScheduledChunk> parts = scheduler_.schedule_async(before.rows);
    if (parts.empty()) return std::nullopt;
    return std::pair{issue(parts, before.ids_C), parts};
}

/// What is known of a pass' tokens besides those chosen: of prompts, and of the answers' before they are taken.
void Decoder::note_rated(const Issued& issued) {
    for (std::size_t i = 0; i < issued.rated.size(); ++i) {
        const Issued::Rated& rated = issued.rated[i];
        const Sequence* const s = rated.of != nullptr ? rated.of : issued.rows[rated.row];
        if (s == nullptr) continue;
        const at::Tensor row = issued.top_ids[static_cast<int64_t>(i)],
                         logprobs = issued.top_logprobs[static_cast<int64_t>(i)];
        std::vector<std::pair<int32_t, float>> top;
        for (int64_t k = 0; k < std::min(rated.top, row.size(0)); ++k)
            top.emplace_back(static_cast<int32_t>(row.const_data_ptr<int64_t>()[k]),
                             logprobs.const_data_ptr<float>()[k]);
        Completion& answer = answers_.at(s->number);
        if (rated.of != nullptr)
            answer.prompt[rated.position - 1] = {issued.rated_logprobs.const_data_ptr<float>()[i], std::move(top)};
        else
            answer.top.push_back(std::move(top));
    }
}

/// False: its answer has ended, and it is gone.
bool Decoder::take(Sequence& s, const ops::SampledToken& chosen, const OnToken& on_token, const OnEnd& on_end) {
    Completion& answer = answers_.at(s.number);
    answer.cached_tokens = s.shared;
    const std::vector<int32_t>& stops = s.request.stop_ids;
    const bool stops_here = std::find(stops.begin(), stops.end(), chosen.id) != stops.end();
    bool ended = true;
    if (std::isnan(chosen.logprob)) {
        answer.finish_reason = FinishReason::not_finite;
        if (!answer.top.empty()) answer.top.pop_back();
    } else if (stops_here && !s.request.keeps_stop_id) {
        answer.finish_reason = FinishReason::stop_token;
        answer.stop = {chosen.id, {chosen.logprob, {}}};
        if (!answer.top.empty()) {
            answer.stop->second.top = std::move(answer.top.back());
            answer.top.pop_back();
        }
    } else {
        s.ids.push_back(chosen.id);
        if (s.request.constraint) s.request.constraint->advance(chosen.id);
        answer.ids.push_back(chosen.id);
        answer.logprobs.push_back(chosen.logprob);
        const bool more = !on_token || on_token(s.number, chosen.id);
        const bool full = static_cast<int64_t>(answer.ids.size()) == s.request.max_new_tokens;
        ended = stops_here || !more || full;
        answer.finish_reason = stops_here ? FinishReason::stop_token
                               : more     ? FinishReason::length
                                          : FinishReason::stop_text;
    }
    if (!ended) return true;
    const int64_t number = s.number;
    scheduler_.finish(s);
    if (on_end) on_end(number, answer);
    answers_.erase(number);
    unstopped_.erase(number);
    return false;
}

void require_finite(const Completion& answer, const std::string& what) {
    if (answer.finish_reason != FinishReason::not_finite) return;
    throw Error("numerics.not-finite",
                cat(what, ": the model's logits are not finite after ", answer.ids.size(), " new tokens"),
                "float16 overflows where bfloat16 and float32 do not: set model.dtype to one of them.");
}

}  // namespace unsloth::generate
