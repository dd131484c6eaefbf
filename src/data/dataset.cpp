#include "unsloth/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

#include "data/ordered_workers.h"
#include "data/store.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/data/reader.h"
#include "unsloth/data/sampler.h"

namespace unsloth {
namespace {

constexpr std::size_t shown_rows = 5;  ///< how many rows a message lists

/// A row that was not taken, and why.
struct Rejected {
    int64_t line = 0;
    BadRow reason;
};

std::string place(const JsonLinesFile& file, int64_t line) {
    return cat(file.name(), ":", line);
}

Error error_at(const JsonLinesFile& file, const Rejected& row) {
    const char* const skip = "(data.skip_bad_rows: true leaves such rows out and counts them.)";
    return input_error(cat(place(file, row.line), ": ", row.reason.message),
                       row.reason.advice.empty() ? skip : row.reason.advice + "\n  " + skip);
}

std::string list_places(const JsonLinesFile& file, const std::vector<int64_t>& lines, int64_t count) {
    std::string text;
    for (const int64_t line : lines) text += cat(text.empty() ? "" : ", ", place(file, line));
    return count > static_cast<int64_t>(lines.size()) ? text + ", ..." : text;
}

JsonLinesFile open_rows(const std::filesystem::path& path) {
    JsonLinesFile file(path);
    if (file.rows() == 0)
        throw input_error(cat(file.name(), ": has no rows"), "Expected one JSON object on each line.");
    if (file.rows() > std::numeric_limits<int32_t>::max())
        throw input_error(
            cat(file.name(), ": has ", file.rows(), " rows, more than a row number of 32 bits can name"),
            "Split the file.");
    return file;
}

/// The format that options name, or that the first readable row has.
DataFormat find_format(const JsonLinesFile& file, const DatasetOptions& options) {
    if (options.format != DataFormat::automatic) return options.format;
    std::optional<DataFormat> format;
    std::optional<Rejected> first;
    file.visit(0, file.rows(), [&](const RawRow& raw) {
        try {
            const nlohmann::json row = parse_row(raw.text);
            format = detect_format(row);
            std::string columns;
            for (const auto& [name, value] : row.items()) columns += cat(columns.empty() ? "" : ", ", name);
            log::info(file.name(), ": ", file.rows(), " rows of format ", format_name(*format), " (columns ",
                      columns, ")");
        } catch (const BadRow& bad) {
            if (!first) first = Rejected{raw.line, bad};
        }
        return !format && options.skip_bad_rows;
    });
    if (!format) throw error_at(file, *first);
    return *format;
}

int worker_count(int asked) {
    return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// What was left out of a whole file.
struct Losses {
    int64_t bad = 0;
    std::vector<Rejected> first_bad;
    int64_t masked = 0;
    int64_t masked_after_cut = 0;
    std::vector<int64_t> first_masked;
};

/// Adds `other`, which comes later in the file.
void add(Losses& sum, Losses&& other) {
    sum.bad += other.bad;
    sum.masked += other.masked;
    sum.masked_after_cut += other.masked_after_cut;
    for (Rejected& row : other.first_bad)
        if (sum.first_bad.size() < shown_rows) sum.first_bad.push_back(std::move(row));
    for (const int64_t line : other.first_masked)
        if (sum.first_masked.size() < shown_rows) sum.first_masked.push_back(line);
}

void refuse_masked(const JsonLinesFile& file, const Losses& lost) {
    const bool cut = lost.masked_after_cut > 0;
    throw input_error(
        cat(place(file, lost.first_masked.front()), ": all labels are masked, nothing is left to train on (",
            lost.masked, " of ", file.rows(), " rows",
            cut ? cat(", ", lost.masked_after_cut, " of them since they were cut") : "", ": ",
            list_places(file, lost.first_masked, lost.masked), ")"),
        cat(cut ? "Raise model.max_seq_length, so that the answers are not cut off. " : "",
            "data.skip_bad_rows: true leaves such rows out and counts them; data.train_on_prompt: true "
            "trains on prompts too."));
}

void warn_losses(const JsonLinesFile& file, const Losses& lost) {
    if (lost.bad > 0) {
        std::string text = cat(file.name(), ": skipped ", lost.bad, " bad of ", file.rows(), " rows:");
        for (const Rejected& row : lost.first_bad)
            text += cat("\n  ", place(file, row.line), ": ", row.reason.message);
        log::warning(lost.bad > static_cast<int64_t>(lost.first_bad.size()) ? text + "\n  ..." : text);
    }
    if (lost.masked > 0)
        log::warning(
            file.name(), ": left out ", lost.masked, " of ", file.rows(),
            " rows whose labels are all masked: ", list_places(file, lost.first_masked, lost.masked));
}

/// Reads the rows [begin, end) of a file into `store`.
template <class Store>
Losses read_rows(const JsonLinesFile& file, int64_t begin, int64_t end, const RowFormatter& formatter,
                 const DatasetOptions& options, Store& store) {
    Losses lost;
    file.visit(begin, end, [&](const RawRow& raw) {
        const auto reject = [&](BadRow reason) {
            ++lost.bad;
            if (lost.first_bad.size() < shown_rows) lost.first_bad.push_back({raw.line, std::move(reason)});
            return options.skip_bad_rows;
        };
        try {
            const FormattedRow row = formatter.format(parse_row(raw.text));
            if (row.targets > 0 || options.keep_all_masked) {
                store.append(row, raw.index);
                return true;
            }
            ++lost.masked;
            lost.masked_after_cut += row.truncated;
            if (lost.first_masked.size() < shown_rows) lost.first_masked.push_back(raw.line);
            return true;
        } catch (const BadRow& bad) {
            return reject(bad);
        } catch (const Error& error) {  // the template or the tokenizer refuses the row
            if (error.kind() != ErrorKind::input) throw;
            return reject({error.what(), ""});
        }
    });
    file.drop(begin, end);
    return lost;
}

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

std::vector<int64_t> counted(int64_t n) {
    std::vector<int64_t> numbers(static_cast<std::size_t>(n));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

}  // namespace

DataFormat probe_format(const std::filesystem::path& path, const DatasetOptions& options) {
    return find_format(open_rows(path), options);
}

Dataset::Dataset() : store_(std::make_shared<Store>()) {}

Dataset::Dataset(std::shared_ptr<const Store> store, std::vector<int64_t> rows, DatasetStats file)
    : store_(std::move(store)), rows_(std::move(rows)), stats_(store_->count(rows_)) {
    stats_.bad_rows = file.bad_rows;
    stats_.masked_rows = file.masked_rows;
    stats_.format = file.format;
}

Dataset Dataset::load(const std::filesystem::path& path, const DatasetOptions& options,
                      const RowEncoder* encoder) {
    const JsonLinesFile file = open_rows(path);
    DatasetStats stats;
    stats.format = find_format(file, options);
    const RowFormatter formatter(stats.format, options, encoder);

    struct Chunk {
        Store store;
        Losses lost;
    };
    constexpr int64_t chunk_rows = JsonLinesFile::index_stride;
    const auto read = [&](int64_t k) {
        Chunk chunk;
        const int64_t begin = k * chunk_rows;
        chunk.lost = read_rows(file, begin, std::min(begin + chunk_rows, file.rows()), formatter, options,
                               chunk.store);
        return chunk;
    };
    const auto store = std::make_shared<Store>();
    Losses lost;
    run_in_order<Chunk>((file.rows() + chunk_rows - 1) / chunk_rows, worker_count(options.workers), read,
                        [&](Chunk&& chunk) {
                            if (chunk.lost.bad > 0 && !options.skip_bad_rows)
                                throw error_at(file, chunk.lost.first_bad.front());
                            store->append(chunk.store);
                            add(lost, std::move(chunk.lost));
                        });
    if (lost.masked > 0 && !options.skip_bad_rows) refuse_masked(file, lost);
    warn_losses(file, lost);
    if (store->rows() == 0)
        throw input_error(cat(file.name(), ": none of its ", file.rows(), " rows can be used (", lost.bad,
                              " bad, ", lost.masked, " with all labels masked)"));
    stats.bad_rows = lost.bad;
    stats.masked_rows = lost.masked;
    Dataset result(store, counted(store->rows()), stats);
    if (result.stats_.truncated_rows > 0)
        log::warning(file.name(), ": cut ", result.stats_.truncated_rows, " of ", file.rows(), " rows at ",
                     options.max_seq_length, " tokens (model.max_seq_length)");
    return result;
}

Dataset Dataset::from_samples(const std::vector<Sample>& samples) {
    const auto store = std::make_shared<Store>();
    for (const Sample& sample : samples) {
        FormattedRow row{sample.ids, sample.labels, sample.positions, false, 0};
        row.targets = count_targets(sample.labels, sample.positions);
        store->append(row, sample.row);
    }
    DatasetStats stats;
    stats.format = DataFormat::tokenized;
    return Dataset(store, counted(store->rows()), stats);
}

Sample Dataset::sample(int64_t i) const {
    return store_->sample(rows_.at(static_cast<std::size_t>(i)));
}

int64_t Dataset::row(int64_t i) const {
    return store_->source_rows[static_cast<std::size_t>(rows_.at(static_cast<std::size_t>(i)))];
}

int64_t Dataset::tokens(int64_t i) const {
    const auto at = static_cast<std::size_t>(rows_.at(static_cast<std::size_t>(i)));
    return store_->offsets[at + 1] - store_->offsets[at];
}

int64_t Dataset::targets(int64_t i) const {
    return store_->targets[static_cast<std::size_t>(rows_.at(static_cast<std::size_t>(i)))];
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
