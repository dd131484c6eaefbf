// A file to upload, and what the hub says of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "unsloth/core/files.h"

namespace unsloth::hub {

struct LocalFile {
    std::string name;  ///< in the repository
    MappedFile content;
    bool large = false;       ///< stored by its SHA-256, sent before the commit; else a part of the commit
    bool ignored = false;     ///< by the repository's .gitignore
    std::string remote_hash;  ///< of the branch's file of this name; empty: there is none
    std::string hash;         ///< SHA-256 of a large one, git's SHA-1 of the others

    std::span<const std::byte> bytes() const { return content.bytes(); }
    std::string_view text() const { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }
    auto size() const { return static_cast<int64_t>(bytes().size()); }
    bool is_unchanged() const { return hash == remote_hash; }
};

}  // namespace unsloth::hub
