#include "unsloth/data/training_data.h"

#include "unsloth/core/error.h"

namespace unsloth {

DatasetOptions dataset_options(const Config& config, const ModelLimits& limits) {
    DatasetOptions options;
    options.format = config.data.format;
    options.train_on_prompt = config.data.train_on_prompt;
    options.skip_bad_rows = config.data.skip_bad_rows;
    options.max_seq_length = config.model.max_seq_length;
    options.vocab_size = limits.vocab_size;
    options.max_positions = limits.max_positions;
    return options;
}

LoaderOptions loader_options(const Config& config, int rank, int world_size) {
    LoaderOptions options;
    options.per_device_train_batch_size = config.training.per_device_train_batch_size;
    options.gradient_accumulation_steps = config.training.gradient_accumulation_steps;
    options.seed = static_cast<uint64_t>(config.training.seed);
    options.shuffle = config.data.shuffle;
    options.packing = config.data.packing;
    options.max_seq_length = config.model.max_seq_length;
    options.rank = rank;
    options.world_size = world_size;
    return options;
}

TrainingData load_training_data(const Config& config, const ModelLimits& limits,
                                const std::function<std::unique_ptr<RowEncoder>()>& make_encoder) {
    const DataOptions& data = config.data;
    if (data.train_file.empty())
        throw usage_error("data.train_file is not set", "Name a JSON Lines file to train on.");
    if (data.eval_file && data.val_size != 0)
        throw usage_error("both data.eval_file and data.val_size are set",
                          "Choose one: a file of its own, or a part of the training rows.");

    std::unique_ptr<RowEncoder> encoder;
    const auto load = [&](const std::string& path) {
        DatasetOptions options = dataset_options(config, limits);
        options.format = probe_format(path, options);
        if (options.format != DataFormat::tokenized && !encoder && make_encoder) encoder = make_encoder();
        return Dataset::load(path, options, encoder.get());
    };
    TrainingData result;
    result.train = load(data.train_file);
    if (data.eval_file) {
        result.eval = load(*data.eval_file);
    } else if (data.val_size != 0) {
        auto [train, eval] = result.train.split(data.val_size, static_cast<uint64_t>(config.training.seed));
        result.train = std::move(train);
        result.eval = std::move(eval);
    }
    return result;
}

}  // namespace unsloth
