// All rows of a file as tokens, in memory, in one compact store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/data/encoder.h"
#include "unsloth/data/format.h"

namespace unsloth {

struct DatasetOptions : RowOptions {
    DataFormat format = DataFormat::automatic;
    bool skip_bad_rows = false;    ///< bad rows and rows without a target are counted and left out
    bool keep_all_masked = false;  ///< rows without a target are kept (scoring), neither refused nor dropped
    int workers = 0;  ///< threads; 0: as many as the machine has cores. The result does not depend on it
};

struct DatasetStats {
    int64_t rows = 0;                           ///< kept
    int64_t bad_rows = 0;                       ///< skipped: malformed
    int64_t masked_rows = 0;                    ///< skipped: no label left to train on
    int64_t truncated_rows = 0;                 ///< among the kept
    int64_t tokens = 0;                         ///< of the kept, after truncation
    int64_t trained_tokens = 0;                 ///< targets among them
    int64_t longest = 0;                        ///< tokens of the longest kept row
    DataFormat format = DataFormat::automatic;  ///< as detected
};

/// The format of a file's rows: options.format, or what the columns of the first readable row say (logged).
/// Input Error when the file has no row, or its first row (with skip_bad_rows: every row) does not tell.
DataFormat probe_format(const std::filesystem::path& path, const DatasetOptions& options);

/// Rows ready to train on: an immutable store shared by copies and splits, and the list of its rows that are
/// ours.
class Dataset {
  public:
    Dataset();

    /// Reads and tokenises a JSON Lines file with several threads; the rows stand in the file's order. Logs
    /// the format, and what was skipped or cut. Input Error "file:line: what is wrong" for the first bad row
    /// unless skip_bad_rows; for rows whose labels are all masked (count and first lines); for a file without
    /// rows.
    static Dataset load(const std::filesystem::path& path, const DatasetOptions& options,
                        const RowEncoder* encoder);
    /// From samples in memory (tests, benchmarks). No checks beyond equal lengths.
    static Dataset from_samples(const std::vector<Sample>& samples);

    int64_t size() const { return static_cast<int64_t>(rows_.size()); }
    Sample sample(int64_t i) const;
    int64_t row(int64_t i) const;      ///< index in the source file
    int64_t tokens(int64_t i) const;   ///< length
    int64_t targets(int64_t i) const;  ///< labels that count, after the shift
    /// Of these rows; what was skipped counts for the whole file.
    const DatasetStats& stats() const { return stats_; }

    /// {training rows, validation rows}, each in the file's order. `val_size` below 1 is a fraction (rounded
    /// up), else a number of rows. A row's lot is a hash of (seed, its index in the source): the rows with
    /// the smallest go to validation, so few change sides when the file grows. Usage Error unless both parts
    /// get a row; 0 gives all to the first.
    std::pair<Dataset, Dataset> split(double val_size, uint64_t seed) const;

  private:
    struct Store;
    Dataset(std::shared_ptr<const Store> store, std::vector<int64_t> rows, DatasetStats file);

    std::shared_ptr<const Store> store_;
    std::vector<int64_t> rows_;  ///< indices into the store
    DatasetStats stats_;
};

}  // namespace unsloth
