#include "unsloth/data/training_data.h"

#include <map>
#include <tuple>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/data/cache.h"

namespace unsloth::data {

namespace {

/// What a source does not say is the same for all.
std::vector<config::DataSource> complete(std::vector<config::DataSource> sources, const config::DataOptions& data) {
    for (config::DataSource& source : sources) {
        if (source.format == config::DataFormat::automatic) source.format = data.format;
        if (source.columns.empty()) source.columns = data.columns;
    }
    return sources;
}

void warn_of_shared_rows(const Dataset& eval, const Dataset& train, const std::vector<config::DataSource>& sources) {
    const auto [shared, rows] = eval.shared_with(train);
    if (shared == 0) return;
    std::string names;
    for (const config::DataSource& source : sources)
        names += cat(" ", source.path, source.split.empty() ? "" : ", ", source.split);
    log::warning(
        "data.eval_file", sources.size() > 1 ? "s" : "", names, " holds the training rows",
        shared < rows ? cat(" in ", shared, " of its ", rows, " rows") : "",
        ": the evaluation says how well they are remembered, not what was learned; data.val_size holds rows out");
}

void refuse_augmented(const DatasetStats& stats) {
    if (stats.augmented_rows == 0) return;
    throw Error("data.held-out-copies",
                cat("data.val_size is set, and the training rows hold ", stats.augmented_rows,
                    " augmented copies: copies of rows that are held out would be trained on"),
                "Let `unsloth-train data augment --val_size N --eval_out FILE` hold rows out before it makes "
                "copies, and name that FILE as "
                "data.eval_file instead.");
}

}  // namespace

std::vector<config::DataSource> training_sources(const config::DataOptions& data) {
    if (!data.datasets.empty()) return complete(data.datasets, data);
    return complete({{.path = data.train_file, .split = data.train_split}}, data);
}

std::vector<config::DataSource> evaluation_sources(const config::DataOptions& data) {
    std::vector<config::DataSource> sources;
    if (data.eval_file || !data.eval_split.empty())
        sources.push_back({.path = data.eval_file.value_or(data.train_file), .split = data.eval_split});
    for (const auto& [name, file] : data.eval_files) sources.push_back({.path = file});
    return complete(std::move(sources), data);
}

DatasetOptions dataset_options(const config::Config& config, const ModelLimits& limits) {
    DatasetOptions options;
    options.objective = config.training.objective;
    options.format = config.data.format;
    options.reader = {config.data.text_unit, config.data.invalid_utf8, config.data.columns,
                      config::traits_of(config.training.objective).examples == config::ExampleKind::pairs};
    options.train_on_prompt = config.data.train_on_prompt;
    options.train_on_last_turn_only = config.data.train_on_last_turn_only;
    options.skip_bad_rows = config.data.skip_bad_rows;
    options.max_seq_length = config.model.max_seq_length > 0 ? config.model.max_seq_length : limits.max_positions;
    options.long_rows = config.data.long_rows;
    options.vocab_size = limits.vocab_size;
    options.max_positions = limits.max_positions;
    options.max_prompt_length = config.preference.max_prompt_length;
    options.truncation_mode = config.preference.truncation_mode;
    options.bos_id = limits.bos_id;
    if (!limits.folder.empty()) options.vision = read_vision_rows(limits.folder, config.data.image_max_pixels);
    options.image_root = config.data.image_root;
    options.image_max_pixels = config.data.image_max_pixels;
    options.min_length = config.data.min_length;
    return options;
}

LoaderOptions loader_options(const config::Config& config, int rank, int world_size) {
    LoaderOptions options;
    options.per_device_train_batch_size = config.training.per_device_train_batch_size;
    options.gradient_accumulation_steps = config.training.gradient_accumulation_steps;
    options.seed = static_cast<uint64_t>(config.training.seed);
    options.shuffle = config.data.shuffle;
    options.packing = config.data.packing;
    options.count_first_labels =
        config::traits_of(config.training.objective).learns_prompts ||
        (config.training.objective == config::Objective::dpo && config.preference.rpo_alpha > 0);
    options.max_seq_length = config.model.max_seq_length;
    options.max_tokens_per_batch = config.training.max_tokens_per_batch;
    for (const config::DataSource& source : config.data.datasets)
        if (source.weight) options.source_weights.push_back(*source.weight);
    options.rank = rank;
    options.world_size = world_size;
    return options;
}

namespace {

/// Sources through the cache, as a configuration says.
class Loading {
  public:
    Loading(const config::Config& config, const ModelLimits& limits, const EncoderMaker& make_encoder,
            const std::string& fingerprint, const LoadChoices& choices)
        : make_encoder_(make_encoder), options_(dataset_options(config, limits)) {
        options_.log_warnings = choices.log_warnings;
        if (choices.refused == RefusedRows::set_aside) options_.skip_bad_rows = options_.keep_all_masked = true;
        cache_ = cache_options(config.data.cache_dir);
        cache_.encoder_fingerprint = fingerprint;
        cache_.max_bytes = static_cast<int64_t>(config.data.cache_max_gib * static_cast<double>(int64_t{1} << 30));
    }

    Dataset operator()(const std::vector<config::DataSource>& sources) {
        const auto on_demand = [&](const std::string& template_name) -> const RowEncoder* {
            auto& encoder = encoders_[template_name];
            if (!encoder && make_encoder_) encoder = make_encoder_(template_name);
            return encoder.get();
        };
        return load_cached(sources, options_, on_demand, cache_);
    }

  private:
    const EncoderMaker& make_encoder_;
    std::map<std::string, std::unique_ptr<RowEncoder>> encoders_;  // by template
    DatasetOptions options_;
    CacheOptions cache_;
};

}  // namespace

TrainingData load_training_data(const config::Config& config, const ModelLimits& limits,
                                const EncoderMaker& make_encoder, const std::string& fingerprint,
                                const LoadChoices& choices) {
    const config::DataOptions& data = config.data;
    if (data.train_file.empty() && data.datasets.empty())
        throw Error("option.missing", "data.train_file is not set",
                    "Name a file of rows to train on, or several sources in data.datasets.");
    if (data.eval_file && data.val_size != 0)
        throw Error("option.conflict", "both data.eval_file and data.val_size are set",
                    "Choose one: a file of its own, or a part of the training rows.");

    Loading load(config, limits, make_encoder, fingerprint, choices);
    const bool set_aside = choices.refused == RefusedRows::set_aside;
    TrainingData result;
    result.train = load(training_sources(data));
    if (data.drop_duplicates) {
        result.train = result.train.without_duplicates();
        if (const int64_t dropped = result.train.stats().duplicate_rows; dropped > 0 && choices.log_warnings)
            log::info("dropped ", dropped, " duplicate training examples (data.drop_duplicates)");
    }
    if (set_aside) std::tie(result.train, result.masked_train) = result.train.by_targets();
    const std::vector<config::DataSource> evaluated = evaluation_sources(data);
    if (!evaluated.empty()) {
        result.eval = load(evaluated);
        if (choices.log_warnings) warn_of_shared_rows(*result.eval, result.train, evaluated);
        if (set_aside) std::tie(*result.eval, result.masked_eval) = Dataset(*result.eval).by_targets();
    } else if (data.val_size != 0) {
        refuse_augmented(result.train.stats());
        auto [train, eval] = result.train.split(data.val_size, static_cast<uint64_t>(config.training.seed));
        result.train = std::move(train);
        result.eval = std::move(eval);
    }
    if (config::traits_of(config.training.objective).mismatches) {
        const int64_t longest = dataset_options(config, limits).max_seq_length;
        result.train = result.train.with_foreign_answers(longest);
        if (result.eval) result.eval = result.eval->with_foreign_answers(longest);
    }
    return result;
}

Dataset load_evaluation_rows(const config::Config& config, const ModelLimits& limits, const EncoderMaker& make_encoder,
                             const std::string& fingerprint) {
    const std::vector<config::DataSource> sources = evaluation_sources(config.data);
    if (!sources.empty()) return Loading(config, limits, make_encoder, fingerprint, {})(sources);
    if (config.data.val_size == 0)
        throw Error("option.missing", "data.eval_file is not set",
                    "Name a file of rows, or let data.val_size hold some out.");
    Dataset rows = *load_training_data(config, limits, make_encoder, fingerprint).eval;
    log::info(rows.size(), " rows, which data.val_size ", config.data.val_size, " holds out of the training rows");
    return rows;
}

}  // namespace unsloth::data
