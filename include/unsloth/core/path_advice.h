// What to do about a path that is not there, or at which nothing can be made: the advice of an error.
#pragma once

#include <filesystem>
#include <string>

#include "unsloth/core/error_id.h"

namespace unsloth {

/// "Did you mean data/train.jsonl?", of paths that exist and differ by a slip in one component; empty where there is
/// none.
std::string nearest_path(const std::filesystem::path& missing);

/// nearest_path(), or where a relative path was looked for; empty for an absolute one. Of a link: where it leads.
std::string advice_on_missing(const std::filesystem::path& missing);

/// What would let a file or folder be made at `path`, which failed for the reason `code` (an errno); may be empty.
std::string advice_on_creating(const std::filesystem::path& path, int code);

/// The id of what failed to write for the reason `code` (an errno): disk.full or disk.cannot-write.
ErrorId write_failure(int code);

}  // namespace unsloth
