// `score --top_k`: a teacher's words about the targets of a run's rows, for distill.teacher.
// Legend: C rows of a chunk, V vocabulary, k tokens of a target.
#include "commands/score_teacher.h"
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/session/session.h"
#include "unsloth/session/teacher.h"

namespace unsloth::commands {
namespace {

namespace names = objective::teacher_file;

template <class Value>
std::span<const std::byte> bytes_of(const Value* values, std::size_t count) {
    return {reinterpret_cast<const std::byte*>(values), count * sizeof(Value)};
}

/// A file that is being written.
class Writer {
  public:
    Writer(const std::string& path, const std::vector<data::Dataset>& sets, int64_t k,
           formats::SafetensorsWriter::Metadata metadata)
        : k_(k), writer_(path, declare(sets, k), std::move(metadata)) {}

    /// Adds a chunk's top-k tokens, and the mass of all others together, from logits divided by the temperature.
    void add(const at::Tensor& logits_CV, double temperature) {
        constexpr int64_t rows_at_a_time = 64;  // fp32 copies of them
        for (int64_t first = 0; first < logits_CV.size(0); first += rows_at_a_time) {
            const int64_t rows = std::min(rows_at_a_time, logits_CV.size(0) - first);
            const at::Tensor logits = logits_CV.narrow(0, first, rows).to(at::kFloat) / temperature;
            const auto [highest, ids] = logits.topk(k_, 1);
            const at::Tensor all = logits.logsumexp(1, /*keepdim=*/true);
            const at::Tensor others =
                logits.scatter(1, ids, -std::numeric_limits<double>::infinity()).logsumexp(1, /*keepdim=*/true);
            const at::Tensor words = at::cat({highest, others}, 1).sub(all).cpu().contiguous(),
                             tokens = ids.to(at::kInt).cpu().contiguous();
            if (!words.isfinite().all().item<bool>())
                throw Error("numerics.not-finite", "a log-probability is not finite", session::overflow_advice);
            writer_.append(names::ids,
                           bytes_of(tokens.const_data_ptr<int32_t>(), static_cast<std::size_t>(tokens.numel())));
            writer_.append(names::logp,
                           bytes_of(words.const_data_ptr<float>(), static_cast<std::size_t>(words.numel())));
        }
    }
    void end(const data::Batch& batch) {
        for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) {
            keys_.push_back(static_cast<int64_t>(objective::segment_key(batch, s)));
            starts_.push_back(starts_.back() + batch.target_starts[s + 1] - batch.target_starts[s]);
        }
    }
    void finish() {
        writer_.append(names::keys, bytes_of(keys_.data(), keys_.size()));
        writer_.append(names::starts, bytes_of(starts_.data(), starts_.size()));
        writer_.finish();
    }
    int64_t targets() const { return starts_.back(); }

  private:
    static std::vector<formats::TensorDecl> declare(const std::vector<data::Dataset>& sets, int64_t k) {
        int64_t segments = 0, n = 0;
        for (const data::Dataset& rows : sets)
            for (int64_t i = 0; i < rows.size(); ++i) segments += rows.segments(i), n += rows.targets(i);
        return {{names::keys, spec::DType::i64, {segments}},
                {names::starts, spec::DType::i64, {segments + 1}},
                {names::ids, spec::DType::i32, {n, k}},
                {names::logp, spec::DType::f32, {n, k + 1}}};
    }

    int64_t k_;
    formats::SafetensorsWriter writer_;
    std::vector<int64_t> keys_, starts_ = {0};
};

}  // namespace

void write_teacher_file(const config::LoadedConfig& loaded, const engine_api::ScoreRequest& request) {
    const config::Config& config = loaded.config;
    if (!request.logits.empty())
        throw Error("option.conflict", "--logits and --top_k are both given",
                    "A teacher's file holds only the most likely tokens.");
    const session::OpenedModel opened = session::open_model(config);
    const int64_t vocab_size = opened.file->spec.vocab_size, k = request.top_k;
    if (k >= vocab_size || k > ops::most_teacher_tokens)
        throw Error("option.out-of-range", cat("--top_k is ", k, ", and the vocabulary has ", vocab_size, " ids"),
                    cat("Take at most ", std::min(vocab_size - 1, ops::most_teacher_tokens), "."));
    data::TrainingData data =
        data::load_training_data(config, opened.limits(), session::encoder_maker(opened, config),
                                 data::run_encoder_fingerprint(opened.tokenizer_folder, config.data));
    std::vector<data::Dataset> sets = {std::move(data.train)};
    if (data.eval) sets.push_back(std::move(*data.eval));
    std::vector<data::EvalLoader> loaders;
    data::BatchLimits most;
    for (const data::Dataset& rows : sets) {
        constexpr int64_t tokens_at_a_time = 4096;
        const data::EvalLoader& loader = loaders.emplace_back(rows, std::max(tokens_at_a_time, rows.stats().longest));
        const data::BatchLimits limits = loader.limits();
        most.tokens = std::max(most.tokens, limits.tokens);
        most.segments = std::max(most.segments, limits.segments);
        most.labels = std::max(most.labels, limits.labels);
        most.patches = std::max(most.patches, limits.patches);
        most.image_tokens = std::max(most.image_tokens, limits.image_tokens);
    }
    const double temperature = config.distill.temperature;
    Writer writer(request.out, sets, k,  // takes its space on the disk
                  {{"format", "pt"},
                   {names::format, names::version},
                   {names::temperature, nlohmann::json(temperature).dump()},
                   {names::vocabulary, session::vocabulary_hash(opened)},
                   {names::vocabulary_size, cat(vocab_size)},
                   {names::model, config.model.path}});
    const session::LoadedModel scorer =
        session::load_for_inference(loaded, opened, most.tokens, most.segments, most.labels, most.tokens, {}, {}, {},
                                    {most.patches, most.image_tokens});
    for (const data::EvalLoader& loader : loaders) {
        Progress progress("scoring", loader.batches());
        for (int64_t i = 0; i < loader.batches(); ++i) {
            if (const int signal = interrupt_requested(); signal != 0)
                throw Interrupted(signal, "stopped while the rows were scored; nothing was written");
            const data::Batch batch = loader.batch(i);
            scorer.model->score(batch,
                                [&](int64_t, const at::Tensor& logits_CV) { writer.add(logits_CV, temperature); });
            writer.end(batch);
            progress.add();
        }
    }
    writer.finish();
    log::info(request.out, ": ", k, " tokens of each of ", writer.targets(), " targets, at temperature ", temperature);
}

}  // namespace unsloth::commands
