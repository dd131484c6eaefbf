// The interface of libunsloth_hub.so, which alone links libcurl: opened when something is to be
// downloaded.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include "unsloth/hub/hub.h"

namespace unsloth::hub {

/// The hub cannot be asked now; what the cache holds may do.
class Unreachable : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class Downloader {
  public:
    virtual ~Downloader() = default;
    /// Asks the hub what the repository holds, and gets what is wanted of it into the cache; the snapshot's folder.
    /// Errors as obtain(); Unreachable when the hub was not heard at all.
    virtual std::filesystem::path download(const Request& request, const std::filesystem::path& cache) = 0;
};

}  // namespace unsloth::hub

extern "C" {
/// The library's one entry. The caller owns the result.
unsloth::hub::Downloader* unsloth_create_downloader();
}
