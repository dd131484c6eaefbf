#include "unsloth/data/describe.h"

#include "data/figures.h"
#include "unsloth/core/error.h"

namespace unsloth::data {
std::string describe(const Dataset& dataset) {
    const DatasetStats& stats = dataset.stats();
    std::string text =
        cat(grouped(stats.rows), " rows (", format_name(stats.format), "), ", grouped(stats.tokens), " tokens, ",
            percent(stats.trained_tokens, stats.tokens), " of them trained, longest row ", grouped(stats.longest));
    if (stats.truncated_rows > 0) text += cat("; cut: ", grouped(stats.truncated_rows));
    if (stats.split_rows > 0) text += cat("; split: ", grouped(stats.split_rows), " into ", grouped(stats.pieces));
    if (stats.long_rows > 0) text += cat("; omitted as too long: ", grouped(stats.long_rows));
    if (stats.short_rows > 0) text += cat("; omitted as too short: ", grouped(stats.short_rows));
    if (stats.masked_rows > 0) text += cat("; omitted with all labels masked: ", grouped(stats.masked_rows));
    if (stats.duplicate_rows > 0) text += cat("; omitted as duplicates: ", grouped(stats.duplicate_rows));
    if (stats.bad_rows > 0) text += cat("; skipped as bad: ", grouped(stats.bad_rows));
    return text;
}

std::string describe(const StepLoader& loader) {
    const LoaderOptions& options = loader.options();
    std::string text = describe(loader.dataset());
    if (options.packing) {
        const int64_t room = loader.rows_per_epoch() * options.max_seq_length;
        text +=
            cat("\npacked into ", grouped(loader.rows_per_epoch()), " rows of at most ",
                grouped(options.max_seq_length), " tokens, ", percent(loader.dataset().stats().tokens, room), " full");
    }
    std::string batch = cat(options.per_device_train_batch_size, " rows a micro-batch");
    if (options.max_tokens_per_batch > 0) {
        batch = cat("at most ", grouped(options.max_tokens_per_batch), " tokens a micro-batch, ",
                    percent(loader.dataset().stats().tokens, loader.batches_per_epoch() * options.max_tokens_per_batch),
                    " full");
    }
    if (!options.source_weights.empty())
        text += cat("\n", grouped(loader.rows_per_epoch()), " rows an epoch by the sources' weights");
    text += cat("\n", grouped(loader.steps_per_epoch()), " steps an epoch (", batch, " x ",
                options.gradient_accumulation_steps, " micro-batches");
    return text + (options.world_size > 1 ? cat(" x ", options.world_size, " devices)") : ")");
}

}  // namespace unsloth::data
