#include "unsloth/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/load_rows.h"
#include "data/store.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/data/sampler.h"

namespace unsloth {
namespace {

/// How many rows go to validation.
int64_t validation_count(double val_size, int64_t rows) {
    if (!(val_size >= 0) || (val_size >= 1 && val_size != std::floor(val_size)))
        throw usage_error(
            cat("data.val_size is ", val_size, ": expected a fraction below 1 or a whole number of rows"));
    constexpr double slack = 1e-9;  // 0.07 of 100 rows are 7, although 0.07 * 100 > 7
    const double wanted = val_size < 1 ? std::ceil(val_size * static_cast<double>(rows) - slack) : val_size;
    if (wanted >= static_cast<double>(rows) && wanted > 0)
        throw usage_error(
            cat("data.val_size is ", val_size, ", which leaves none of the ", rows, " rows to train on"),
            "Choose a smaller one, or name an eval_file.");
    return static_cast<int64_t>(wanted);
}

/// Rows joined in memory.
class MemorySink : public RowSink {
  public:
    void append(StorePart&& part) override {
        const auto before = static_cast<int64_t>(rows.words.size());
        rows.words.insert(rows.words.end(), part.words.begin(), part.words.end());
        for (RowRecord& record : part.records) {
            record.start += before;
            rows.records.push_back(record);
        }
    }
    StorePart rows;
};

DatasetStats stats_of(const LoadReport& report) {
    DatasetStats stats;
    stats.bad_rows = report.bad_rows;
    stats.masked_rows = report.masked_rows;
    stats.format = report.format;
    return stats;
}

std::vector<int64_t> counted(int64_t n) {
    std::vector<int64_t> numbers(static_cast<std::size_t>(n));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

}  // namespace

DataFormat probe_format(const std::filesystem::path& path, const DatasetOptions& options) {
    return resolve({.path = path.string(), .format = options.format, .columns = options.reader.columns}, options.reader, options.skip_bad_rows).format;
}

Dataset::Dataset() : store_(std::make_shared<Store>()) {}

Dataset::Dataset(std::shared_ptr<const Store> store, DatasetStats file)
    : Dataset(store, counted(store->rows()), file) {}

Dataset::Dataset(std::shared_ptr<const Store> store, std::vector<int64_t> rows, DatasetStats file)
    : store_(std::move(store)), rows_(std::move(rows)), stats_(store_->count(rows_)) {
    stats_.bad_rows = file.bad_rows;
    stats_.masked_rows = file.masked_rows;
    stats_.format = file.format;
}

Dataset Dataset::load(const std::vector<DataSource>& sources, const DatasetOptions& options, const EncoderOnDemand& encoder) {
    std::vector<SourceFiles> files;
    for (const DataSource& source : sources) files.push_back(resolve(source, options.reader, options.skip_bad_rows));
    MemorySink sink;
    const LoadReport report = load_rows(files, options, all_tokenized(files) ? nullptr : encoder(), sink);
    for (const std::string& warning : report.warnings) log::warning(warning);
    return Dataset(std::make_shared<Store>(std::move(sink.rows)), stats_of(report));
}

Dataset Dataset::load(const std::filesystem::path& path, const DatasetOptions& options, const RowEncoder* encoder) {
    return load(std::vector<DataSource>{{.path = path.string(), .format = options.format, .columns = options.reader.columns}}, options, [=] { return encoder; });
}

Dataset Dataset::from_samples(const std::vector<Sample>& samples) {
    StorePart rows;
    for (const Sample& sample : samples) {
        FormattedRow row{sample.ids, sample.labels, sample.positions, false, 0};
        row.targets = count_targets(sample.labels, sample.positions);
        rows.append(row, sample.row, 0);
    }
    DatasetStats stats;
    stats.format = DataFormat::tokenized;
    return Dataset(std::make_shared<Store>(std::move(rows)), stats);
}

Sample Dataset::sample(int64_t i) const {
    return store_->sample(rows_.at(static_cast<std::size_t>(i)));
}

int64_t Dataset::row(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).source_row;
}

int32_t Dataset::source(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).source;
}

int64_t Dataset::tokens(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).length;
}

int64_t Dataset::targets(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).targets;
}

int64_t Dataset::segments(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).segments;
}

int64_t Dataset::longest_segment(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).longest;
}

std::pair<Dataset, Dataset> Dataset::split(double val_size, uint64_t seed) const {
    const int64_t wanted = validation_count(val_size, size());
    std::vector<std::pair<uint64_t, int64_t>>
        lots;  // {lot, index into rows_}; rows_ ascend, so ties go by row
    for (int64_t i = 0; i < size(); ++i)
        lots.emplace_back(row_lot(seed, row(i), 0, LotUse::validation_split), i);
    std::sort(lots.begin(), lots.end());

    std::vector<int64_t> train, validation;
    for (std::size_t k = 0; k < lots.size(); ++k)
        (static_cast<int64_t>(k) < wanted ? validation : train)
            .push_back(rows_[static_cast<std::size_t>(lots[k].second)]);
    std::sort(train.begin(), train.end());
    std::sort(validation.begin(), validation.end());
    return {Dataset(store_, std::move(train), stats_), Dataset(store_, std::move(validation), stats_)};
}

}  // namespace unsloth
