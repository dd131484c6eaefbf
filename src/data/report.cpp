#include "unsloth/data/report.h"

#include <algorithm>
#include <unordered_map>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"

namespace unsloth::data {
namespace {

constexpr std::size_t listed_duplicates = 5;
constexpr int64_t most_bins = 12;

/// The rows of a data set by their ids: equal hashes are looked at, so that only equal rows count.
class RowsByIds {
  public:
    explicit RowsByIds(const Dataset& rows) : rows_(rows) {}

    /// The row with these ids that was added first.
    std::optional<int64_t> find(const std::vector<int32_t>& ids) const {
        const auto [begin, end] = places_.equal_range(hash_of(ids));
        for (auto found = begin; found != end; ++found)
            if (rows_.sample(found->second).ids == ids) return found->second;
        return std::nullopt;
    }
    void add(const std::vector<int32_t>& ids, int64_t i) { places_.emplace(hash_of(ids), i); }

  private:
    static uint64_t hash_of(const std::vector<int32_t>& ids) {
        ContentHash hash;
        hash.add({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
        return hash.word();
    }
    const Dataset& rows_;
    std::unordered_multimap<uint64_t, int64_t> places_;
};

/// The least of 1, 2, 5, 10, 20, 50, ... that cuts `span` lengths into no more than most_bins.
int64_t bin_width(int64_t span) {
    for (int64_t power = 1;; power *= 10)
        for (const int64_t digit : {1, 2, 5})
            if (digit * power * most_bins >= span) return digit * power;
}

std::vector<LengthBin> bins_of(const std::vector<int64_t>& sorted) {
    std::vector<LengthBin> bins;
    if (sorted.empty()) return bins;
    const int64_t width = bin_width(sorted.back() + 1);
    for (int64_t from = 0; from <= sorted.back(); from += width) {
        const auto begin = std::lower_bound(sorted.begin(), sorted.end(), from),
                   end = std::lower_bound(begin, sorted.end(), from + width);
        bins.push_back({from, from + width - 1, end - begin});
    }
    return bins;
}

/// The smallest length that `percent` percent of the rows do not exceed.
int64_t percentile(const std::vector<int64_t>& sorted, int64_t percent) {
    const auto rank = (percent * static_cast<int64_t>(sorted.size()) + 99) / 100;
    return sorted[static_cast<std::size_t>(std::max<int64_t>(rank, 1) - 1)];
}

int64_t file_rows(const DatasetStats& stats) {
    return stats.rows - stats.pieces + stats.split_rows;
}

SetReport report_on(const Dataset& rows, RowsByIds& by_ids) {
    SetReport report;
    const DatasetStats& stats = rows.stats();
    report.format = stats.format;
    report.bad = stats.bad_rows;
    report.masked = stats.masked_rows;
    report.too_long = stats.long_rows;
    report.too_short = stats.short_rows;
    report.split = stats.split_rows;
    report.pieces = stats.pieces;
    report.dropped_duplicates = stats.duplicate_rows;
    report.read = file_rows(stats) + stats.bad_rows + stats.masked_rows + stats.long_rows + stats.short_rows +
                  stats.duplicate_rows;
    report.rows = stats.rows;
    report.tokens = stats.tokens;
    report.trained_tokens = stats.trained_tokens;
    report.truncated = stats.truncated_rows;

    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < rows.size(); ++i) {
        const Sample sample = rows.sample(i);
        const std::vector<int32_t>& ids = sample.ids;
        lengths.push_back(static_cast<int64_t>(ids.size()));
        report.images += static_cast<int64_t>(sample.images.size());
        for (const auto& [begin, end] : image_ranges(sample)) report.image_tokens += end - begin;
        if (const auto earlier = by_ids.find(ids); earlier && rows.sample(*earlier).sources == sample.sources) {
            ++report.duplicates;
            if (report.first_duplicates.size() < listed_duplicates)
                report.first_duplicates.emplace_back(rows.row(i), rows.row(*earlier));
        } else {
            by_ids.add(ids, i);
        }
    }
    if (lengths.empty()) return report;
    std::sort(lengths.begin(), lengths.end());
    report.shortest = lengths.front();
    report.median = percentile(lengths, 50);
    report.p95 = percentile(lengths, 95);
    report.longest = lengths.back();
    report.lengths = bins_of(lengths);
    return report;
}

std::string with_split(const std::string& path, const std::string& split) {
    return split.empty() ? path : cat(path, ", ", split);
}

std::string source_of(const config::DataOptions& data) {
    if (data.datasets.empty()) return with_split(data.train_file, data.train_split);
    std::string names;
    for (const config::DataSource& source : data.datasets)
        names += cat(names.empty() ? "" : ", ", with_split(source.path, source.split));
    return names;
}

std::string eval_source_of(const config::DataOptions& data) {
    std::string names = with_split(data.eval_file            ? *data.eval_file
                                   : data.eval_split.empty() ? ""
                                                             : data.train_file,
                                   data.eval_split);
    for (const auto& [name, file] : data.eval_files) names += cat(names.empty() ? "" : ", ", name, ": ", file);
    return names;
}

void add_samples(DataReport& report, const std::string& set, const Dataset& rows, int64_t count) {
    for (int64_t i = 0; i < std::min(count, rows.size()); ++i) report.samples.emplace_back(set, rows.sample(i));
}

StepsReport steps_of(const Dataset& train, const config::Config& config) {
    StepsReport steps;
    steps.options = loader_options(config);
    StepLoader loader(train, steps.options);
    steps.rows_per_epoch = loader.rows_per_epoch();
    steps.first_epoch = loader.count_epoch(0);
    steps.steps_per_epoch = loader.steps_per_epoch();
    steps.total_steps = loader.total_steps(config.training.num_train_epochs, config.training.max_steps);
    return steps;
}

}  // namespace

DataReport make_report(const TrainingData& data, const config::Config& config, const std::optional<Error>& refusal,
                       int64_t shown) {
    DataReport report;
    const auto stops = [&](const Error& error) { report.refusal = error.what(), report.refusal_id = error.id(); };
    if (refusal) stops(*refusal);
    RowsByIds train_ids(data.train);
    report.train = report_on(data.train, train_ids);
    report.train.source = source_of(config.data);
    report.warnings = data.train.stats().warnings;
    const bool parted = config.data.val_size != 0;
    if (data.eval) {
        RowsByIds eval_ids(*data.eval);
        report.eval = report_on(*data.eval, eval_ids);
        report.eval->source = parted ? cat("held out of the training rows by data.val_size ", config.data.val_size)
                                     : eval_source_of(config.data);
        for (int64_t i = 0; i < data.eval->size(); ++i) {
            const Sample sample = data.eval->sample(i);
            const auto found = train_ids.find(sample.ids);
            report.shared += found && data.train.sample(*found).sources == sample.sources;
        }
        report.eval->held_out = parted;
        if (parted) {
            report.train.read += file_rows(data.eval->stats());
            report.eval->read = report.train.read;
        } else {
            const auto& more = data.eval->stats().warnings;
            report.warnings.insert(report.warnings.end(), more.begin(), more.end());
        }
    }
    try {
        report.steps = steps_of(data.train, config);
    } catch (const Error& error) {  // no rows, or a micro-batch that cannot hold the longest
        if (report.refusal.empty()) stops(error);
    }
    add_samples(report, "training", data.train, shown);
    if (data.eval) add_samples(report, "evaluation", *data.eval, std::min<int64_t>(shown, 1));
    add_samples(report, "masked", data.masked_train, shown);
    add_samples(report, "masked", data.masked_eval, shown);
    return report;
}

}  // namespace unsloth::data
