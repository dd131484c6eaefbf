// Sources of rows: which files they are, and their rows one after another.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/config/split.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

/// A source with its files, in the order in which they are read.
struct SourceFiles {
    std::string name;  ///< path as the user gave it
    std::vector<std::filesystem::path> files;
    config::DataFormat format = config::DataFormat::automatic;
    ColumnNames columns;
    std::string template_name;  ///< empty: data.template
    int64_t max_samples = 0;    ///< at most this many rows are read; 0: all

    /// Whose rows are the first `files` that no part before has, one after another.
    struct Part {
        config::SplitPart split;
        std::size_t files = 0;
    };
    std::vector<Part> parts;  ///< empty: all rows of all files
};

/// Files that a source's path names. A file is itself. A folder is all files of rows below it (.jsonl, .json, .ndjson,
/// .csv, .tsv, .txt, .parquet, .arrow, the first six also with .gz or .zst) without hidden ones, those that begin with
/// `_`, and texts about the folder (LICENSE.txt, README.txt, ...), sorted by path. Anything else is a glob (*, ?,
/// [...]), its matches sorted; a folder among them is taken as above.
///
/// `split` keeps the files that belong to it: their name begins with it, followed by one of `-._`
/// (train-00000-of-00002.parquet, train.jsonl), or a folder below the path has its name. Without a split, a folder that
/// has files of `train` is its `train`, and a glob that matches some skips those of other splits (both said in the
/// log), so that a test set in the same folder is not trained on by accident.
///
/// Input Error when nothing is found, or nothing belongs to the split; it names the splits that are there. A file
/// belongs to the split that its name says, and to train.
std::vector<std::filesystem::path> files_of(const std::string& path, const std::string& split);

/// Rows of several sources in order. A row's id is its number over all sources and files: sources in the order of the
/// configuration, files sorted, rows in the order of the file. Rows before a slice of a file count, those after it do
/// not.
class SourceReader {
  public:
    SourceReader(std::vector<SourceFiles> sources, ReaderOptions options);

    struct Part {
        RowChunk chunk;
        std::shared_ptr<const RowReader> file;  ///< that the chunk comes from
        int32_t source = 0;
        int64_t first_id = 0;  ///< of the file's first row: a row's id is first_id + its index
    };
    /// The next rows; an empty chunk at the end. One thread at a time. Logs each source's first file. Input Error for a
    /// file that cannot be read, a source without rows, and more rows than 32 bits can number.
    Part next();

    /// Rows that were handed out so far.
    int64_t rows() const { return rows_; }

  private:
    bool open_next();
    bool is_full() const;
    void begin_source();
    RowChunk wanted_rows();

    std::vector<SourceFiles> sources_;
    ReaderOptions options_;
    std::size_t source_ = 0, file_ = 0;
    std::vector<std::pair<int64_t, int64_t>> wanted_;  ///< rows [first, second) of the source's files
    std::shared_ptr<RowReader> reader_;
    int64_t position_ = 0;  ///< rows of the file that were read
    int64_t taken_ = 0;     ///< rows of the source that were handed out
    int64_t first_id_ = 0, next_id_ = 0, rows_ = 0;
};

/// The format of a source's rows: the one it names, or what the columns of each file's first readable row say (logged).
/// Input Error "file:line: what is wrong" when there is no row, or a file's first row (with `skip_bad_rows`: every row)
/// does not tell, when the files do not agree, and when the source's columns name one that is not there, but another
/// one of a like name. Warns where the file's own column is read in place of one that is not there.
config::DataFormat find_format(const SourceFiles& source, const ReaderOptions& options, bool skip_bad_rows);

/// A source whose path, configuration and split were looked up. Errors as files_of(), and as parse_split().
SourceFiles with_files(const config::DataSource& source);

/// The same with its format known.
SourceFiles resolve(const config::DataSource& source, const ReaderOptions& options, bool skip_bad_rows);

}  // namespace unsloth::data
