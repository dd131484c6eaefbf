// One file from the hub into the cache's blobs.
#pragma once

#include <atomic>
#include <functional>

#include "hub/cache.h"
#include "hub/download/asking.h"

namespace unsloth::hub {

/// What all downloads of a repository share.
struct Job {
    const Repository& repository;
    const Access& access;
    const CachedRepository& cached;
    std::string commit;
    std::function<bool()> stopped;  ///< asked by every thread
    std::atomic<int64_t>& arrived;  ///< bytes; takes back what was of no use
};

/// Bytes of the file that an earlier download left.
int64_t left_of(const CachedRepository& cached, const RemoteFile& file);

/// Gets the file unless its blob is there, resumes where an earlier download broke off, checks size and hash, and links
/// it into the snapshot. Errors as obtain(). Returns early, without the file, when stopped.
void download_file(Http& http, const Job& job, const std::string& name, const RemoteFile& file);

}  // namespace unsloth::hub
