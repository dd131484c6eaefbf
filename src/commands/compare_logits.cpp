// The logits of base and adapter against those of the model that they were merged into.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>

#include "commands/all_targets.h"
#include "unsloth/commands/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/philox.h"
#include "unsloth/data/batch.h"
#include "unsloth/session/session.h"

namespace unsloth::commands {
namespace {

/// Prose, code and another script: rows that reach many rows of the embedding.
constexpr const char* own_texts[] = {
    "The parties agree that a change to this contract is valid only if it is made in writing and signed by both of "
    "them.",
    "def mean(values):\n    total = sum(values)\n    return total / len(values) if values else 0.0\n",
    "Vier Züge fuhren am 3. März 2024 um 17:45 Uhr nach Ковель; 東京 war weiter entfernt.",
};
constexpr int64_t own_random_rows = 4, own_random_tokens = 16;
/// Of logits held while the other model computes.
constexpr int64_t largest_held_bytes = int64_t{1} << 30;

using Row = data::Sample;

Row row_of(std::vector<int32_t> ids) {
    Row row;
    row.ids = row.labels = std::move(ids);
    row.positions.resize(row.ids.size());
    std::iota(row.positions.begin(), row.positions.end(), 0);
    return row;
}

/// From 0 to 1.
float random_share(int64_t row, int64_t t) {
    return unit_float(philox4x32(0x3e57, 0, static_cast<uint32_t>(row), static_cast<uint32_t>(t), 0, 0).w[0]);
}

/// Ids from all over the vocabulary: they need no tokenizer.
std::vector<int32_t> random_ids(int64_t row, int64_t vocab) {
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < own_random_tokens; ++t)
        ids.push_back(static_cast<int32_t>(random_share(row, t) * static_cast<float>(vocab)));
    return ids;
}

std::shared_ptr<const std::vector<uint8_t>> random_pixels(int64_t bytes) {
    auto pixels = std::make_shared<std::vector<uint8_t>>(static_cast<std::size_t>(bytes));
    for (std::size_t i = 0; i < pixels->size(); ++i)
        (*pixels)[i] = static_cast<uint8_t>(random_share(own_random_rows + 1, static_cast<int64_t>(i)) * 256.0F);
    return pixels;
}

/// Such ids around an image of random pixels.
Row row_with_tile(const spec::ModelSpec& spec) {
    constexpr int32_t before = 4;
    std::vector<int32_t> ids = random_ids(own_random_rows, spec.vocab_size);
    ids.insert(ids.begin() + before, spec.vision->image_token);
    Row row = row_of(std::move(ids));
    row.images = {{before, 1, 1, random_pixels(spec.vision->tiles->patches() * spec.vision->patch_bytes())}};
    return row;
}
Row row_with_image(const spec::ModelSpec& spec) {
    if (spec.vision->tiles) return row_with_tile(spec);
    constexpr int32_t before = 4, side = 4;  // tokens of text, and of an image's side
    const spec::VisionSpec& tower = *spec.vision;
    std::vector<int32_t> ids = random_ids(own_random_rows, spec.vocab_size);
    ids.insert(ids.begin() + before, side * side, tower.image_token);
    Row row = row_of(std::move(ids));
    for (int32_t t = 0; t < static_cast<int32_t>(row.ids.size()); ++t) {
        const int32_t i = t - before, after_image = i - side * side + side;
        if (i >= 0 && i < side * side)
            row.axes.insert(row.axes.end(), {before, before + i / side, before + i % side});
        else
            row.axes.insert(row.axes.end(), 3, i < 0 ? t : before + after_image);
    }
    const auto patches = static_cast<int32_t>(side * tower.merge);
    row.images = {{before, patches, patches, random_pixels(int64_t{patches} * patches * tower.patch_bytes())}};
    return row;
}

std::vector<Row> rows_of_own(const session::OpenedModel& merged) {
    const int64_t vocab = merged.file->spec.vocab_size;
    std::vector<Row> rows;
    if (tokenizer::Tokenizer::exists(merged.tokenizer_folder)) {
        const tokenizer::Tokenizer tokenizer = merged.tokenizer();
        for (const char* text : own_texts) rows.push_back(row_of(tokenizer.encode(text, true)));
    }
    for (int64_t i = 0; i < own_random_rows; ++i) rows.push_back(row_of(random_ids(i, vocab)));
    if (merged.file->spec.vision) rows.push_back(row_with_image(merged.file->spec));
    return rows;
}

data::Dataset rows_of_file(const session::OpenedModel& merged, const config::Config& config) {
    data::DatasetOptions options = data::dataset_options(config, merged.limits());
    options.keep_all_masked = true;
    options.max_seq_length = 0;
    return session::read_rows(merged, config, options);
}

/// The rows to compare on, as many as may be held: a user's file can be long.
std::vector<Row> rows_to_compare(const engine_api::CompareRequest& request, const session::OpenedModel& merged,
                                 config::Config config) {
    std::vector<Row> rows;
    std::optional<data::Dataset> file;
    const int64_t most =
        std::max<int64_t>(1, largest_held_bytes / (merged.file->spec.vocab_size * static_cast<int64_t>(sizeof(float))));
    std::error_code ignored;
    if (request.texts.empty()) {
        rows = rows_of_own(merged);
    } else if (std::filesystem::exists(request.texts, ignored)) {
        config.data.train_file = request.texts;
        config.data.train_split.clear();
        file = rows_of_file(merged, config);
        for (int64_t i = 0; i < file->size(); ++i) rows.push_back(file->sample(i));
    } else {
        rows.push_back(row_of(merged.tokenizer().encode(request.texts, true)));
    }
    const int64_t longest = std::min(most, merged.file->spec.usable_positions());
    // A row with images is taken as a whole, or not at all.
    std::erase_if(rows, [&](const Row& row) {
        return row.ids.empty() || (!row.images.empty() && static_cast<int64_t>(row.ids.size()) > longest);
    });
    int64_t tokens = 0;
    std::size_t taken = 0;
    for (; taken < rows.size() && tokens < most; ++taken) {
        Row& row = rows[taken];
        const auto fits = static_cast<std::size_t>(std::min(longest, most - tokens));
        if (row.ids.size() > fits && !row.images.empty() && taken > 0) break;
        if (row.images.empty()) {
            row.ids.resize(std::min(row.ids.size(), fits));
            row = row_of(std::move(row.ids));
        }
        tokens += static_cast<int64_t>(row.ids.size());
    }
    if (taken < rows.size())
        log::info("the first ", taken, " of ", rows.size(), " rows (", tokens, " tokens) are compared");
    rows.resize(taken);
    if (file) file->load_pixels(rows);
    if (rows.empty())
        throw Error("data.empty", cat("nothing to compare the models on: '", request.texts, "' has no tokens"));
    return rows;
}

/// fp32 [T, V] of every row, on the CPU. The model is loaded for this alone.
std::vector<at::Tensor> logits_of(const config::Config& config, const session::OpenedModel& opened,
                                  const std::vector<Row>& rows) {
    int64_t longest = 1;
    data::Dataset::ImageSizes images;
    for (const Row& row : rows) {
        longest = std::max(longest, static_cast<int64_t>(row.ids.size()));
        for (const data::Image& image : row.images) images.patches = std::max(images.patches, image.patches());
        const auto own =
            std::ranges::count(row.ids, opened.file->spec.vision ? opened.file->spec.vision->image_token : -1);
        images.tokens = std::max(images.tokens, static_cast<int64_t>(own));
    }
    const session::LoadedModel loaded =
        session::load_for_inference({config, {}, {}}, opened, longest, 1, longest, longest, {}, {}, {}, images);
    std::vector<at::Tensor> all;
    for (const Row& row : rows) {
        if (const int signal = interrupt_requested()) throw Interrupted(signal, "stopped; nothing was written");
        const Row whole = all_targets(row, opened.file->spec.vocab_size);
        data::Batch batch = data::make_batch({&whole, 1});
        data::cover_every_position(batch);
        std::vector<at::Tensor> chunks;
        loaded.model->score(batch, [&](int64_t, const at::Tensor& logits_CV) {
            chunks.push_back(logits_CV.to(at::kFloat).cpu().clone());
        });
        all.push_back(at::cat(chunks));
    }
    return all;
}

/// What two rows of logits say of the next token, added up in fp64.
class Comparison {
  public:
    void add(const float* reference, const float* found, int64_t vocab) {
        const double mean = mean_of(reference, vocab);
        double largest = 0;
        for (int64_t v = 0; v < vocab; ++v) {
            const double difference = std::abs(static_cast<double>(found[v]) - static_cast<double>(reference[v]));
            largest = difference > largest || std::isnan(difference) ? difference : largest;
            differences_ += difference;
            squares_ += difference * difference;
            variance_ += (static_cast<double>(reference[v]) - mean) * (static_cast<double>(reference[v]) - mean);
        }
        max_abs_ = std::isnan(largest) ? largest : std::max(max_abs_, largest);
        kl_ += divergence(reference, found, vocab);
        agreements_ += std::max_element(reference, reference + vocab) - reference ==
                       std::max_element(found, found + vocab) - found;
        ++tokens_;
        values_ += vocab;
    }
    engine_api::LogitComparison result(int64_t rows) const {
        engine_api::LogitComparison all;
        all.rows = rows;
        all.tokens = tokens_;
        all.relative = squares_ == 0 ? 0 : std::sqrt(squares_ / variance_);
        all.max_abs = max_abs_;
        all.mean_abs = differences_ / static_cast<double>(values_);
        all.mean_kl = kl_ / static_cast<double>(tokens_);
        all.top1 = static_cast<double>(agreements_) / static_cast<double>(tokens_);
        return all;
    }

  private:
    static double mean_of(const float* values, int64_t n) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(values[i]);
        return sum / static_cast<double>(n);
    }
    static double log_sum_exp(const float* logits, int64_t n) {
        const double top = static_cast<double>(*std::max_element(logits, logits + n));
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
        return top + std::log(sum);
    }
    static double divergence(const float* p, const float* q, int64_t n) {
        const double norm_p = log_sum_exp(p, n), norm_q = log_sum_exp(q, n);
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            const double log_p = static_cast<double>(p[i]) - norm_p;
            sum += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - norm_q));
        }
        return sum;
    }

    double differences_ = 0, squares_ = 0, variance_ = 0, max_abs_ = 0, kl_ = 0;
    int64_t agreements_ = 0, tokens_ = 0, values_ = 0;
};

}  // namespace

engine_api::LogitComparison compare_logits(const engine_api::CompareRequest& request) {
    config::Config of_base, of_merged;
    of_base.model.path = request.base;
    of_base.model.adapter_name_or_path = request.adapter;
    of_base.model.load_in_4bit = request.base_in_4bit;
    of_base.model.precision = request.base_precision;
    of_base.model.ignore_serve_grid = request.ignore_serve_grid;
    of_merged.model.path = request.merged;
    of_merged.model.load_in_4bit = false;
    for (config::Config* config : {&of_base, &of_merged}) {
        config->model.dtype = spec::DType::f32;
        config->hardware.device = request.device;
    }
    const session::OpenedModel merged = session::open_model(of_merged);
    const std::vector<Row> rows = rows_to_compare(request, merged, of_merged);
    const std::vector<at::Tensor> reference = logits_of(of_base, session::open_model(of_base), rows);
    const std::vector<at::Tensor> found = logits_of(of_merged, merged, rows);
    Comparison comparison;
    const int64_t vocab = merged.file->spec.vocab_size;
    for (std::size_t i = 0; i < rows.size(); ++i)
        for (int64_t t = 0; t < reference[i].size(0); ++t)
            comparison.add(reference[i].data_ptr<float>() + t * vocab, found[i].data_ptr<float>() + t * vocab, vocab);
    return comparison.result(static_cast<int64_t>(rows.size()));
}

}  // namespace unsloth::commands
