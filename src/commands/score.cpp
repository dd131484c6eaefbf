#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "commands/all_targets.h"
#include "commands/score_teacher.h"
#include "unsloth/commands/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/data/batch.h"
#include "unsloth/session/session.h"
#include "unsloth/session/teacher.h"

namespace unsloth::commands {
namespace {

struct Limits {
    int64_t tokens = 1, segments = 1, positions = 1;
    data::Dataset::ImageSizes images = {};
};

Limits limits_of(const data::Dataset& rows) {
    Limits limits;
    for (int64_t i = 0; i < rows.size(); ++i) {
        const data::Sample sample = rows.sample(i);
        limits.tokens = std::max<int64_t>(limits.tokens, static_cast<int64_t>(sample.ids.size()));
        limits.segments = std::max(limits.segments, rows.segments(i));
        const data::Dataset::ImageSizes own = rows.image_sizes(i);
        limits.images = {std::max(limits.images.patches, own.patches), std::max(limits.images.tokens, own.tokens)};
        for (const auto position : sample.positions)
            limits.positions = std::max<int64_t>(limits.positions, position + 1);
    }
    return limits;
}

/// Logits of positions [0, T) need every position as a row of the head, the last one of each segment too.
class LogitsFile {
  public:
    LogitsFile(const std::string& path, const data::Dataset& rows, int64_t vocab) {
        if (path.empty()) return;
        std::vector<formats::TensorDecl> tensors;
        for (int64_t i = 0; i < rows.size(); ++i)
            tensors.push_back({cat("logits.", i), spec::DType::f32, {rows.tokens(i), vocab}});
        writer_.emplace(path, std::move(tensors));
    }
    bool wanted() const { return writer_.has_value(); }
    void append(int64_t row, const at::Tensor& logits_CV) {
        const at::Tensor values = logits_CV.to(at::kFloat).cpu().contiguous();
        writer_->append(cat("logits.", row),
                        {static_cast<const std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
    }
    void finish() {
        if (writer_) writer_->finish();
    }

  private:
    std::optional<formats::SafetensorsWriter> writer_;
};

nlohmann::ordered_json score_row(model::Model& model, const data::Dataset& rows, int64_t i, LogitsFile& logits) {
    std::vector<data::Sample> one = {rows.sample(i)};
    rows.load_pixels(one);
    const data::Sample &sample = one.front(), all = all_targets(sample, model.spec().vocab_size);
    data::Batch batch = data::make_batch({&all, 1});
    if (logits.wanted()) data::cover_every_position(batch);
    const at::Tensor losses =
        model.score(batch, logits.wanted() ? [&](int64_t, const at::Tensor& chunk) { logits.append(i, chunk); }
                                           : model::Model::OnLogits());
    const float* const values = losses.data_ptr<float>();
    const data::Batch labelled = data::make_batch({&sample, 1});
    nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
    for (std::size_t t = 0; t < sample.ids.size(); ++t) logprobs.push_back(nullptr);
    double sum = 0;
    for (std::size_t k = 0; k < batch.target_index.size(); ++k) {
        const auto t = static_cast<std::size_t>(batch.target_index[k]);
        if (batch.targets_T[t] == data::ignore_label) continue;
        if (!std::isfinite(values[k]))
            throw Error("numerics.not-finite",
                        cat("row ", rows.row(i), ": the log-probability of token ", t + 1, " is not finite"),
                        session::overflow_advice);
        logprobs[t + 1] = -static_cast<double>(values[k]);
        if (labelled.targets_T[t] != data::ignore_label) sum += values[k];
    }
    const int64_t labels = labelled.labels;
    return {{"row", rows.row(i)},
            {"ids", sample.ids},
            {"logprobs", std::move(logprobs)},
            {"loss",
             labels > 0 ? nlohmann::ordered_json(sum / static_cast<double>(labels)) : nlohmann::ordered_json(nullptr)},
            {"n_labels", labels}};
}

}  // namespace

void run_score(const config::LoadedConfig& given, const engine_api::ScoreRequest& request) {
    const config::LoadedConfig loaded = session::with_base(given);
    if (request.top_k > 0) return write_teacher_file(loaded, request);
    const session::OpenedModel opened = session::open_model(loaded.config);
    if (loaded.config.data.train_file.empty())
        throw Error("option.missing", "data.train_file is missing", "Name the rows to score: --data.train_file FILE.");
    data::DatasetOptions options = data::dataset_options(loaded.config, opened.limits());
    options.keep_all_masked = true;
    options.max_positions = 0;  // what the model makes of too long a row is what a probe is asked
    if (options.long_rows == config::LongRows::automatic)
        options.long_rows = config::LongRows::truncate;  // a line for each row
    options.min_length = 0;
    if (!loaded.is_given("model.max_seq_length")) options.max_seq_length = 0;
    const data::Dataset rows = session::read_rows(opened, loaded.config, options);
    const Limits limits = limits_of(rows);
    if (limits.positions > opened.file->spec.usable_positions())
        log::warning("rows reach ", limits.positions, " positions, and the model was made for ",
                     opened.file->spec.usable_positions(), " (max_position_embeddings): scored all the same");
    LogitsFile logits(request.logits, rows, opened.file->spec.vocab_size);  // takes its space on the disk
    const session::LoadedModel loaded_model = session::load_for_inference(
        loaded, opened, limits.tokens, limits.segments, limits.tokens, limits.tokens, {}, {}, {}, limits.images);
    std::string out;
    double sum = 0;
    int64_t labels = 0;
    for (int64_t i = 0; i < rows.size(); ++i) {
        const nlohmann::ordered_json row = score_row(*loaded_model.model, rows, i, logits);
        const auto n = row["n_labels"].get<int64_t>();
        if (n > 0) sum += row["loss"].get<double>() * static_cast<double>(n);
        labels += n;
        out += row.dump() + "\n";
    }
    logits.finish();
    write_file_atomically(request.out, out);
    log::info(rows.size(), " rows scored into ", request.out, ", mean loss ",
              labels > 0 ? sum / static_cast<double>(labels) : 0.0, " over ", labels, " labels");
}

}  // namespace unsloth::commands
