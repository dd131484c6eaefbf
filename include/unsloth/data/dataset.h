// All rows of a data set as tokens, in one compact store: in memory, or in the map of a cache file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/data/encoder.h"
#include "unsloth/data/format.h"
#include "unsloth/data/kept_images.h"
#include "unsloth/data/source.h"

namespace unsloth::data {

struct LoadOptions {
    config::DataFormat format = config::DataFormat::automatic;  ///< of a source that names none
    ReaderOptions reader;
    bool skip_bad_rows = false;    ///< bad rows and rows without a target are counted and dropped
    bool keep_all_masked = false;  ///< rows without a target are kept (scoring), neither refused nor dropped
    bool log_warnings = true;      ///< false: what DatasetStats::warnings holds is left to the caller
    int workers = 0;               ///< threads; 0: as many as the machine has cores. The result does not depend on it
};

/// What a row becomes, and how the rows are loaded. All of it but what the result does not depend on is part of the
/// cache's keys (src/data/cache_key.cpp).
struct DatasetOptions : RowOptions, LoadOptions {};

/// Gives the encoder (not owned) of a source's rows, by the source's own template (empty: data.template), or null when
/// there is none.
using EncoderOnDemand = std::function<const RowEncoder*(const std::string& template_name)>;

struct DatasetStats {
    int64_t rows = 0;                                           ///< kept
    int64_t bad_rows = 0;                                       ///< skipped: malformed
    int64_t masked_rows = 0;                                    ///< skipped: no label left to train on
    int64_t long_rows = 0;                                      ///< dropped: longer than max_seq_length
    int64_t short_rows = 0;                                     ///< dropped: shorter than min_length
    int64_t duplicate_rows = 0;                                 ///< dropped by without_duplicates()
    int64_t augmented_rows = 0;                                 ///< in the files: copies that `data augment` made
    int64_t truncated_rows = 0;                                 ///< among the kept
    int64_t split_rows = 0;                                     ///< of the files, whose pieces are among the kept
    int64_t pieces = 0;                                         ///< of these, among the kept
    int64_t tokens = 0;                                         ///< of the kept, after truncation
    int64_t trained_tokens = 0;                                 ///< targets among them
    int64_t longest = 0;                                        ///< tokens of the longest kept row
    config::DataFormat format = config::DataFormat::automatic;  ///< as detected; of several sources the first one's
    std::vector<std::string>
        warnings;  ///< what was skipped, cut or is in doubt, with the first lines; of the whole file
};

/// The format of a source's rows, see find_format(). `path` may be what files_of() takes.
config::DataFormat probe_format(const std::filesystem::path& path, const DatasetOptions& options);

struct StorePart;

/// Rows ready to train on: an immutable store shared by copies and splits, and the list of its rows that are
/// ours.
class Dataset {
  public:
    Dataset();

    /// Reads and tokenises sources with several threads; the rows stand in the order of their ids (see SourceReader).
    /// Logs the formats, and what was skipped or cut. Input Error "file:line: what is wrong" for the first bad row
    /// unless skip_bad_rows; for rows whose labels are all masked (count and first lines); for a source without
    /// rows. `encoder` is called only when some rows are not tokenised.
    static Dataset load(const std::vector<config::DataSource>& sources, const DatasetOptions& options,
                        const EncoderOnDemand& encoder);
    /// The same for one file, folder or glob.
    static Dataset load(const std::filesystem::path& path, const DatasetOptions& options, const RowEncoder* encoder);
    /// From samples in memory (tests, benchmarks). No checks beyond equal lengths.
    static Dataset from_samples(const std::vector<Sample>& samples);

    int64_t size() const { return static_cast<int64_t>(rows_.size()); }
    Sample sample(int64_t i) const;  ///< images have no pixels
    /// Whose images need not be decoded from now on, by this data set, copies and subsets of it; nullptr: all must.
    void set_kept(std::shared_ptr<const KeptImages> kept) { kept_ = std::move(kept); }
    /// How a model sees their images. CheckError where no row has one.
    const VisionRows& vision() const;
    /// Decodes the images of samples of this data set, see data/vision.h.
    void load_pixels(std::vector<Sample>& rows) const;
    int64_t row(int64_t i) const;      ///< id: the row's number over all files of all sources
    int64_t piece(int64_t i) const;    ///< which part of that row it is, from 0; rows that were not split have one
    int32_t source(int64_t i) const;   ///< number of its source, from 0
    int64_t tokens(int64_t i) const;   ///< length
    int64_t targets(int64_t i) const;  ///< labels that count, after the shift
    int64_t first_targets(int64_t i) const;  ///< of the row's first segment; reads the row
    int64_t segments(int64_t i) const;
    struct ImageSizes {
        int64_t patches = 0;  ///< of the largest image
        int64_t tokens = 0;   ///< of all
    };
    Sample images(int64_t i) const;           ///< of the row `images` and `sources` alone, without pixels
    ImageSizes image_sizes(int64_t i) const;  ///< without a pixel; reads a row that has images
    /// Tokens of its segments, with those that segments share once for each; reads a row of several segments.
    int64_t keys(int64_t i) const;
    bool truncated(int64_t i) const;
    int64_t longest_segment(int64_t i) const;  ///< in tokens
    /// Of these rows; what was skipped counts for the whole file.
    const DatasetStats& stats() const { return stats_; }

    /// A hash of the rows: of each its id, source, tokens, labels and positions. Reads all of them.
    std::string fingerprint() const;

    /// {training rows, validation rows}, each in the file's order; which are which says validation_places() of
    /// data/sampler.h. The pieces of a row stay together, and count as one.
    std::pair<Dataset, Dataset> split(double val_size, uint64_t seed) const;

    /// {rows with a target, rows whose labels are all masked}; the latter count among the former's masked_rows.
    std::pair<Dataset, Dataset> by_targets() const;

    /// These rows alone, by their places.
    Dataset subset(const std::vector<int64_t>& places) const;

    /// For KTO: each row, a prompt and an answer, gets a second segment: the same prompt with the answer of the row
    /// before it (the first one's is the last's), cut to `longest` tokens (0: not), whose tokens are targets as the
    /// answer's own are. What a model says of such answers tells how far it is from another, whatever the verdicts.
    /// Usage Error for fewer than two rows.
    Dataset with_foreign_answers(int64_t longest) const;

    /// For rows of two segments, a prompt with one answer and with another: only the first one has the prompt
    /// (see Sample::positions). Prompts that are targets themselves stay as they are.
    Dataset with_shared_prompts() const;

    /// For ORPO: the first segment's tokens before its first target become targets too, with prompt_label().
    Dataset with_trained_prompts() const;

    /// Without the rows that equal an earlier one. Rows are equal if tokens, labels, positions, images and verdict (of
    /// all their pieces) are. Reads all of them.
    Dataset without_duplicates() const;
    /// How many of its rows, and of how many, equal a row of `other`, as above; the pieces of a row count as one. Reads
    /// all rows of both.
    std::pair<int64_t, int64_t> shared_with(const Dataset& other) const;

    struct Store;
    /// Of all rows of a store; `file` counts what was dropped.
    Dataset(std::shared_ptr<const Store> store, DatasetStats file);

  private:
    Dataset(std::shared_ptr<const Store> store, std::vector<int64_t> rows, DatasetStats file);
    Dataset of(StorePart&& rows) const;
    /// A hash of the row that begins here, with all its pieces, and where the next one begins.
    std::pair<std::string, int64_t> content(int64_t begin) const;

    std::shared_ptr<const Store> store_;
    std::vector<int64_t> rows_;  ///< indices into the store
    std::shared_ptr<const KeptImages> kept_;
    DatasetStats stats_;
};

}  // namespace unsloth::data
