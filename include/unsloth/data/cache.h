// Encoded rows kept on disk, so that a second start with the same data does not tokenise again.
//
// A file of the cache is named by a hash of all that its content depends on: the bytes and names of the data files, the
// options of rows, the tokenizer and template, this build of the program, and of Parquet what reads it. Its parts carry
// checksums, which are verified when it is opened: a damaged or cut-off file is rebuilt. Files are written next to
// their final name, flushed and renamed, under a lock: several processes that start together make one file once, and no
// reader ever sees half of one. When a file is made, leftovers of killed processes are deleted. If it is new and makes
// the folder exceed its bound, the least recently used files that no process has in use are deleted too. You may remove
// the folder at any time; it is rebuilt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "unsloth/data/dataset.h"

namespace unsloth::data {

struct CacheOptions {
    std::filesystem::path folder;     ///< empty: no cache
    bool must_work = true;            ///< false: a folder that cannot be made is only warned of
    int64_t least_bytes = 0;          ///< data files that are smaller in sum are not worth it
    int64_t max_bytes = 0;            ///< of all files of rows in the folder; 0: no bound
    std::string encoder_fingerprint;  ///< see encoder_fingerprint(); empty: only tokenised rows are cached
};

/// What data.cache_dir means: "" none; "auto" the folder unsloth-train in $XDG_CACHE_HOME or ~/.cache, for data of 1
/// MiB or more (none where neither variable is set); else that folder.
CacheOptions cache_options(const std::string& cache_dir);

/// As Dataset::load, from the cache where it has the rows. A hit needs neither the encoder nor the formats; warnings
/// about dropped rows are repeated. A file that is new may drive out others (CacheOptions::max_bytes). Runtime Error
/// when the file cannot be written (a full disk): no part of it remains.
Dataset load_cached(const std::vector<config::DataSource>& sources, const DatasetOptions& options,
                    const EncoderOnDemand& encoder, const CacheOptions& cache);

/// Values that a pass over rows gave, in the cache's folder under a hash of all that they depend on. Nothing where the
/// cache does not have `count` values, or their file is damaged.
std::optional<std::vector<float>> kept_values(const CacheOptions& cache, const std::string& key, std::size_t count);
/// Keeps them for the next run, and may drive out other files (CacheOptions::max_bytes). Where they cannot be written
/// that is only warned of: they are at hand.
void keep_values(const CacheOptions& cache, const std::string& key, std::span<const float> values);

}  // namespace unsloth::data
