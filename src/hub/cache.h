// The layout of huggingface_hub's cache: a folder a repository, with
//   blobs/HASH           the files: SHA-256 of large ones, git's SHA-1 of the others
//   snapshots/COMMIT/    links to them under the names that they have in the repository
//   refs/REVISION        the commit that a branch or tag meant when it was last asked for
//   trees/COMMIT.json    the list of the repository's files
// and .locks/ next to these folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/core/file_lock.h"
#include "unsloth/hub/hub.h"

namespace unsloth::hub {

/// A file as the hub lists it.
struct RemoteFile {
    int64_t size = 0;
    std::string git_sha1;  ///< 40 digits, of git's blob
    std::string sha256;    ///< 64 digits of a large file, else empty
    std::string xet_hash;  ///< kept for huggingface_hub; may be empty
    /// The name of its blob.
    const std::string& hash() const { return sha256.empty() ? git_sha1 : sha256; }
};
using Tree = std::map<std::string, RemoteFile>;  ///< by path

std::vector<std::string> names_of(const Tree& tree);

/// Whether `text` is `digits` hexadecimal digits in lower case.
bool is_hash(const std::string& text, std::size_t digits);
/// Whether a path of a repository stays in the folder that it is put into.
bool is_safe_path(const std::string& path);

/// The folder of one repository in a cache.
class CachedRepository {
  public:
    CachedRepository(const std::filesystem::path& cache, const Repository& repository);

    const std::filesystem::path& folder() const { return folder_; }
    std::filesystem::path blob(const RemoteFile& file) const { return folder_ / "blobs" / file.hash(); }
    std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
    /// The cache's folder NAMES of this repository ("blobs", "snapshots/COMMIT", …), made where it is missing. Runtime
    /// Error for a link on the way, and when the system refuses.
    Folder made(const std::filesystem::path& names) const;
    /// Waits for the other process that holds this lock of the repository's, "which WHAT" (FileLock); huggingface_hub
    /// waits for the same. Contents are checked by their hashes: without locks two downloads at once cost time only.
    FileLock lock(const std::string& name, const std::string& what) const;

    /// The commit that the revision means here; nullopt where it was never asked for. Input Error for nonsense.
    std::optional<std::string> commit(const std::string& revision) const;
    void write_commit(const std::string& revision, const std::string& commit) const;
    /// nullopt where there is none, or one of another version.
    std::optional<Tree> tree(const std::string& commit) const;
    void write_tree(const std::string& commit, const Tree& tree) const;

  private:
    Folder in_cache(const std::filesystem::path& names) const;

    std::filesystem::path cache_, name_, folder_;
};

/// A value of the environment; nullopt: unset or empty.
std::optional<std::string> environment(const char* name);
/// 1, on, yes or true.
bool environment_says(const char* name);
/// Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE says that the hub is not asked.
bool is_offline();

}  // namespace unsloth::hub
