// What the name of a file in the cache depends on.
#pragma once

#include <string>
#include <vector>

#include "unsloth/data/cache.h"
#include "unsloth/data/source.h"

namespace unsloth::data {

/// A hash of all that the encoded rows depend on: the files' content, how they are read and encoded, and this build.
/// `cache.folder` has the hashes of large files.
std::string cache_key(const std::vector<SourceFiles>& sources, const DatasetOptions& options,
                      const CacheOptions& cache);

}  // namespace unsloth::data
