#include "commands/calibration_rows.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/data/batch.h"

namespace unsloth::commands {

CalibrationRows::CalibrationRows(const config::Config& config, const session::OpenedModel& opened) {
    data::ModelLimits model = opened.limits();
    model.folder.clear();  // texts alone
    data::DatasetOptions options = data::dataset_options(config, model);
    options.keep_all_masked = true;
    options.max_seq_length = std::min(options.max_seq_length, opened.file->spec.usable_positions());
    rows_ = session::read_rows(opened, config, options);
    const data::DatasetStats& stats = rows_.stats();
    if (stats.longest < 2)
        throw Error("data.no-usable-rows",
                    cat(config.data.train_file, ": no row has two tokens, so there is no token to predict"),
                    "Give rows like those that the model is for; a few hundred will do.");
    most_ = std::max(stats.longest,
                     std::min(stats.tokens, config.training.per_device_train_batch_size * config.model.max_seq_length));
    for (int64_t begin = 0, end = 0; begin < rows_.size(); begin = end) {
        int64_t tokens = 0;
        while (end < rows_.size() && (end == begin || tokens + rows_.tokens(end) <= most_))
            tokens += rows_.tokens(end++);
        if (tokens > end - begin) ranges_.emplace_back(begin, end);  // else each row is one token
    }
    for (const auto& [begin, end] : ranges_) {
        int64_t segments = 0;
        for (int64_t i = begin; i < end; ++i) segments += rows_.segments(i);
        segments_ = std::max(segments_, segments);
    }
}

data::Batch CalibrationRows::batch(std::size_t index) const {
    stop_if_interrupted();
    const auto [begin, end] = ranges_.at(index);
    std::vector<data::Sample> samples;
    for (int64_t i = begin; i < end; ++i) {
        samples.push_back(rows_.sample(i));
        samples.back().labels = samples.back().ids;
    }
    return data::make_batch(samples);
}

}  // namespace unsloth::commands
