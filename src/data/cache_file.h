// One file of the cache: encoded rows and what was found out while they were read.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "data/load_rows.h"
#include "unsloth/core/atomic_file.h"
#include "unsloth/core/hash.h"

namespace unsloth::data {

struct DecodeBatch {
    std::shared_ptr<Dataset::Store> store;  ///< in the file's map
    LoadReport report;
};

/// Maps a file and verifies it; nothing when there is none, or (with a warning) when it is damaged.
std::optional<DecodeBatch> open_cache_file(const std::filesystem::path& path);

/// Writes a file. Without finish(), nothing of it stays; with it, the file counts as used as long as the object lives
/// (see CacheFileUse). Runtime Error when the disk does not take it.
class CacheWriter : public RowSink {
  public:
    explicit CacheWriter(const std::filesystem::path& path);

    void append(StorePart&& part) override;
    void finish(const LoadReport& report);

  private:
    void write(std::string_view bytes);

    AtomicFile file_;
    Descriptor use_;  ///< another name of the open file, whose lock outlives file_.finish()
    std::size_t written_ = 0;
    ContentHash words_hash_;
    uint64_t words_ = 0;
    std::vector<RowRecord> records_;
};

}  // namespace unsloth::data
