// What a run's configuration says about data, put into effect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/data/dataset.h"
#include "unsloth/data/loader.h"

namespace unsloth::data {

/// What the rows must fit; 0 where it is not known.
struct ModelLimits {
    int64_t vocab_size = 0;             ///< rows of the embedding
    int64_t max_positions = 0;          ///< max_position_embeddings
    int64_t bos_id = -1;                ///< bos_token_id; -1: none is named
    std::filesystem::path folder = {};  ///< the model's, whose image processor rows with images need
};

/// The sources that the rows come from; of evaluation rows none where no file of them is set. What a source does not
/// say about its rows is as `data` says for all.
std::vector<config::DataSource> training_sources(const config::DataOptions& data);
std::vector<config::DataSource> evaluation_sources(const config::DataOptions& data);

DatasetOptions dataset_options(const config::Config& config, const ModelLimits& limits);
LoaderOptions loader_options(const config::Config& config, int rank = 0, int world_size = 1);

/// What becomes of bad rows and of rows without a target: what data.skip_invalid says; or they never stop the load,
/// and the rows without a target are kept apart. Both give the same training rows where skip_bad_rows is on, or no such
/// row is there.
enum class RefusedRows { as_configured, set_aside };

struct LoadChoices {
    RefusedRows refused = RefusedRows::as_configured;
    bool log_warnings = true;  ///< see DatasetOptions
};

struct TrainingData {
    Dataset train;
    std::optional<Dataset> eval;        ///< eval_file, eval_files (a source each), or val_size of the training rows
    Dataset masked_train, masked_eval;  ///< with RefusedRows::set_aside: rows of the files whose labels are all masked
};

/// Reads data.train_file or data.datasets, and data.eval_file or data.eval_files, through the cache of data.cache_dir,
/// or splits off data.val_size with the run's seed. `make_encoder` is called once a template, and only when a file's
/// rows are text: tokenised rows work in a model folder without a tokenizer, or with one that cannot be read.
/// `fingerprint` is the encoder's (encoder_fingerprint); without one, rows of text are not cached. Usage Error for both
/// an eval_file and a val_size, for nothing to train on, and for a val_size of files that hold augmented copies of
/// rows, since the copies of a row that is held out would be trained on.
TrainingData load_training_data(const config::Config& config, const ModelLimits& limits,
                                const EncoderMaker& make_encoder, const std::string& fingerprint = {},
                                const LoadChoices& choices = {});

/// data.eval_file or data.eval_files alone (a source each); else what data.val_size splits off the training rows, as
/// load_training_data() does. Usage Error where none of them is set.
Dataset load_evaluation_rows(const config::Config& config, const ModelLimits& limits, const EncoderMaker& make_encoder,
                             const std::string& fingerprint);

}  // namespace unsloth::data
