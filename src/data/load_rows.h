// From files to encoded rows, with several threads.
#pragma once

#include <string>
#include <vector>

#include "data/store.h"
#include "unsloth/data/source.h"

namespace unsloth::data {

/// Where encoded rows go, in order.
class RowSink {
  public:
    virtual ~RowSink() = default;
    /// `part`: the next rows; their `start` counts from the part's own beginning.
    virtual void append(StorePart&& part) = 0;
};

/// What a load found, in addition to the rows.
struct LoadReport {
    int64_t rows = 0;  ///< in the files
    int64_t bad_rows = 0, masked_rows = 0, long_rows = 0, short_rows = 0, augmented_rows = 0;
    config::DataFormat format = config::DataFormat::automatic;  ///< of the first source
    std::vector<std::string> warnings;                          ///< not logged yet
};

/// The report's part of a data set's statistics; logs its warnings where the options say so.
DatasetStats stats_of(const LoadReport& report, const DatasetOptions& options);

/// Whether no source needs a tokenizer.
bool all_tokenized(const std::vector<SourceFiles>& sources);

/// Of each source; null where none needs one.
std::vector<const RowEncoder*> encoders_of(const std::vector<SourceFiles>& sources, const EncoderOnDemand& encoder);

/// Reads all rows of the sources, whose formats are known. Input Errors as Dataset::load says. Interrupted when a
/// signal asked the program to stop.
/// `encoders`: of each source, see encoders_of().
LoadReport load_rows(const std::vector<SourceFiles>& sources, const DatasetOptions& options,
                     const std::vector<const RowEncoder*>& encoders, RowSink& sink);

}  // namespace unsloth::data
