#include "unsloth/generate/decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::generate {
namespace {

/// With dynamic RoPE a token's keys depend on the longest position of the pass: sequences are on their own, whole
/// prompts too.
bool is_dynamic(const model::Model& model) {
    return model.spec().rope.type == spec::RopeSpec::Type::dynamic;
}

SchedulerLimits limits_of(const model::Model& model, const DecoderOptions& options) {
    const model::ActivationSizes& sizes = model.sizes();
    const auto least = [](int64_t asked, int64_t planned) { return asked > 0 ? std::min(asked, planned) : planned; };
    SchedulerLimits limits;
    limits.pass_tokens = least(options.pass_tokens, std::min(sizes.tokens, sizes.longest));
    limits.rows = least(options.rows, std::min({sizes.segments, sizes.head_rows, limits.pass_tokens}));
    limits.context = least(options.context, sizes.longest_context());
    limits.beside_tokens = options.beside_tokens;
    if (is_dynamic(model)) limits.rows = 1, limits.shares_prefixes = false;
    return limits;
}

/// Where in the cache the token at `position` of a sequence lies.
int32_t slot(const Sequence& s, int64_t position) {
    const int64_t page = s.pages[static_cast<std::size_t>(position / ops::page_tokens)];
    return static_cast<int32_t>(page * ops::page_tokens + position % ops::page_tokens);
}

/// `parts` with the last again so often as makes a bucket of rows, up to `most`: it computes the same once more and
/// puts it where it lies already.
std::vector<Part> padded(std::vector<Part> parts, int64_t most) {
    const auto rows = static_cast<int64_t>(parts.size());
    if (rows == 0 || !std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.decodes(); }))
        return parts;
    if (const int64_t bucket = bucket_of(rows); bucket <= most)
        parts.resize(static_cast<std::size_t>(bucket), parts.back());
    return parts;
}

/// `choosing`: so many parts, the first that choose, are asked for logits.
model::CachedPass pass_of(const std::vector<Part>& parts, std::size_t choosing, int64_t context) {
    model::CachedPass pass;
    data::Batch& batch = pass.batch;
    ops::PagedRows& rows = pass.rows;
    rows.most_pages = ops::pages_of(context);
    batch.segments = rows.q_offsets = {0};
    for (const Part& part : parts) {
        const Sequence& s = *part.sequence;
        const int64_t end = s.cached + part.count;
        for (int64_t t = s.cached; t < end; ++t) {
            batch.ids_T.push_back(s.ids[static_cast<std::size_t>(t)]);
            batch.positions_T.push_back(static_cast<int32_t>(t));
            pass.slots_T.push_back(slot(s, t));
        }
        batch.segments.push_back(static_cast<int32_t>(batch.ids_T.size()));
        batch.longest = std::max(batch.longest, static_cast<int32_t>(part.count));
        if (part.chooses() && batch.target_index.size() < choosing)
            batch.target_index.push_back(batch.segments.back() - 1);
        if (s.cached == 0) continue;
        rows.q_offsets.push_back(batch.segments.back());
        rows.lengths.push_back(static_cast<int32_t>(end));
        rows.pages.insert(rows.pages.end(), s.pages.begin(), s.pages.end());
        rows.pages.resize(rows.lengths.size() * static_cast<std::size_t>(rows.most_pages));
        rows.decoding += part.decodes() ? 1 : 0;
    }
    batch.labels = static_cast<int64_t>(batch.target_index.size());
    batch.target_ids.assign(batch.target_index.size(), 0);
    return pass;
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
      context_(limits_of(model, options).context),
      scheduler_(limits_of(model, options), ops::pages_of(model.sizes().cache_tokens), ops::page_tokens) {}

int64_t Decoder::add(Request request) {
    if (is_dynamic(model_) && static_cast<int64_t>(request.prompt.size()) > model_.sizes().tokens)
        throw usage_error(cat("with dynamic RoPE a prompt of ", request.prompt.size(),
                              " tokens goes in at once, passes ", "have at most ", model_.sizes().tokens),
                          "Raise --max_batch_tokens.");
    const int64_t number = scheduler_.add(std::move(request));
    answers_[number];
    return number;
}

bool Decoder::step(const OnToken& on_token, const OnEnd& on_end) {
    const std::vector<Part> parts = scheduler_.next_pass();
    if (parts.empty()) return false;
    std::vector<const Part*> choosing;
    for (const Part& part : parts)
        if (part.chooses()) choosing.push_back(&part);
    const std::vector<ops::Chosen> chosen = choose(parts, choosing);
    scheduler_.computed(parts);
    for (std::size_t i = 0; i < choosing.size(); ++i) take(*choosing[i]->sequence, chosen[i], on_token, on_end);
    return true;
}

std::vector<Answer> Decoder::answer(std::vector<Request> requests, const OnToken& on_token, const OnEnd& on_end) {
    std::vector<Answer> answers(requests.size());
    int64_t first = -1;
    for (Request& request : requests) {
        const int64_t number = add(std::move(request));
        if (first < 0) first = number;
    }
    const auto see = [&](int64_t number, int32_t id) { return !on_token || on_token(number - first, id); };
    const auto end = [&](int64_t number, const Answer& answer) {
        if (on_end) on_end(number - first, answer);
        answers[static_cast<std::size_t>(number - first)] = answer;
    };
    while (step(see, end)) {
    }
    return answers;
}

/// The tokens of the parts that choose.
std::vector<ops::Chosen> Decoder::choose(const std::vector<Part>& parts, std::span<const Part* const> choosing) {
    const auto count = static_cast<int64_t>(choosing.size());
    std::vector<ops::RowSampling> rows;
    for (const Part* part : choosing) {
        const Sequence& s = *part->sequence;
        const Request& request = s.request;
        const std::size_t prompt = request.prompt.size();
        rows.push_back({&request.sampling,
                        s.ids,
                        prompt,
                        {request.seed, request.prompt_number, request.answer_number,
                         static_cast<uint32_t>(s.ids.size() - prompt)}});
    }
    const auto on_device = at::TensorOptions().device(ctx_.device());
    const at::Tensor ids_C = at::empty({count}, on_device.dtype(at::kInt));
    const at::Tensor logprobs_C = at::empty({count}, on_device.dtype(at::kFloat));
    // Recordings are for shapes that come again: rows that leave do not make another one.
    const int64_t most = ctx_.is_cuda() ? std::min(model_.sizes().segments, model_.sizes().tokens) : 0;
    model_.continue_rows(
        pass_of(padded(parts, most), choosing.size(), context_), [&](int64_t first, const at::Tensor& logits_CV) {
            const int64_t n = logits_CV.size(0);
            ops::choose_tokens(ctx_, logits_CV,
                               std::span(rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
                               ids_C.narrow(0, first, n), logprobs_C.narrow(0, first, n));
        });
    const at::Tensor ids = ids_C.cpu(), logprobs = logprobs_C.cpu();
    std::vector<ops::Chosen> chosen;
    for (int64_t row = 0; row < count; ++row) {
        const float logprob = logprobs.const_data_ptr<float>()[row];
        if (std::isnan(logprob)) throw runtime_failure("the model's logits are not finite");
        chosen.push_back({ids.const_data_ptr<int32_t>()[row], logprob});
    }
    return chosen;
}

void Decoder::take(Sequence& s, const ops::Chosen& chosen, const OnToken& on_token, const OnEnd& on_end) {
    Answer& answer = answers_.at(s.number);
    const std::vector<int32_t>& stops = s.request.stop_ids;
    bool ended = true;
    if (std::find(stops.begin(), stops.end(), chosen.id) != stops.end()) {
        answer.ending = Ending::stop_id;
    } else {
        s.ids.push_back(chosen.id);
        answer.ids.push_back(chosen.id);
        answer.logprobs.push_back(chosen.logprob);
        const bool more = !on_token || on_token(s.number, chosen.id);
        const bool full = static_cast<int64_t>(answer.ids.size()) == s.request.max_new_tokens;
        ended = !more || full;
        answer.ending = more ? Ending::length : Ending::told;
    }
    if (!ended) return;
    const int64_t number = s.number;
    scheduler_.finish(s);
    if (on_end) on_end(number, answer);
    answers_.erase(number);
}

int64_t cache_bytes_per_token(const spec::ModelSpec& spec, at::ScalarType dtype) {
    return 2 * spec.num_layers * spec.kv_size() * static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace unsloth::generate
