#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "hub/cache.h"
#include "hub/downloader.h"
#include "hub/library.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;

std::string kind_words(const Repository& repository) {
    return repository.kind == Kind::dataset ? "data set" : "model";
}

std::string command_of(const Repository& repository) {
    return cat("hf download ", repository.kind == Kind::dataset ? "--repo-type dataset " : "", repository.id,
               repository.revision == "main" ? "" : " --revision " + repository.revision);
}

/// The files that a snapshot has of a repository, whose list of files is not known.
std::vector<std::string> listing(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(folder).generic_string());
    std::sort(names.begin(), names.end());
    return names;
}

/// Taken when nothing better is there: a snapshot that may be incomplete.
std::optional<fs::path> part_of(const Request& request, const fs::path& cache, const std::string& why) {
    const CachedRepository repository(cache, request.repository);
    const auto commit = repository.commit(request.repository.revision);
    if (!commit || repository.tree(*commit) || !fs::is_directory(repository.snapshot(*commit))) return std::nullopt;
    const fs::path folder = repository.snapshot(*commit);
    const std::size_t files = request.choose(listing(folder)).size();
    if (files == 0) return std::nullopt;
    log::warning(request.repository.id, ": ", why, "; taking ", files, files == 1 ? " file" : " files",
                 " that the cache has of it, without knowing whether these are all: ", folder.string());
    return folder;
}

/// Whether it is the first time in this process: a command looks a model up several times.
bool is_new(const fs::path& folder) {
    static std::mutex mutex;
    static std::set<fs::path> known;
    const std::lock_guard lock(mutex);
    return known.insert(folder).second;
}

Downloader& downloader() {
    static const std::unique_ptr<Downloader> made(
        library_function<decltype(unsloth_create_downloader)>("unsloth_create_downloader", "downloads")());
    return *made;
}

Error not_here(const Request& request, const fs::path& cache, const std::string& why) {
    const std::string meant = nearest_path(request.repository.id);  // a folder's name may look like a repository's
    return Error(
        "hub.not-downloaded",
        cat(request.repository.id, ": no such folder, the Hugging Face cache (", cache.string(),
            ") does not hold such a ", kind_words(request.repository), ", and ", why),
        cat(meant, meant.empty() ? "" : " ", "Where the hub can be reached: ", command_of(request.repository)));
}

}  // namespace

std::optional<fs::path> find(const Request& request) {
    const CachedRepository repository(cache_folder(), request.repository);
    const auto commit = repository.commit(request.repository.revision);
    if (!commit) return std::nullopt;
    const fs::path snapshot = repository.snapshot(*commit);
    std::error_code ignored;
    if (!fs::is_directory(snapshot, ignored)) return std::nullopt;
    const auto tree = repository.tree(*commit);
    if (!tree) return request.whole(snapshot) ? std::optional(snapshot) : std::nullopt;
    const std::vector<std::string> wanted = request.choose(names_of(*tree));
    const bool all = std::all_of(wanted.begin(), wanted.end(),
                                 [&](const std::string& name) { return fs::exists(snapshot / name, ignored); });
    return all && !wanted.empty() ? std::optional(snapshot) : std::nullopt;
}

fs::path obtain(const Request& request) {
    if (const auto found = find(request)) {
        if (is_new(*found)) log::info(request.repository.id, ": taken from the Hugging Face cache, ", found->string());
        return *found;
    }
    const fs::path cache = cache_folder();
    const auto otherwise = [&](const std::string& why) {
        if (const auto part = part_of(request, cache, why)) return *part;
        throw not_here(request, cache, why);
    };
    if (is_offline()) return otherwise("HF_HUB_OFFLINE is set");
    const FileLock lock =
        CachedRepository(cache, request.repository).lock("unsloth-train", cat("downloads ", request.repository.id));
    if (lock.failure() != 0)
        throw Error(
            "disk.cannot-write",
            cat("cannot write into the Hugging Face cache: ", cache.string(), ": ", std::strerror(lock.failure())),
            "HF_HOME names the folder of the cache.");
    if (const auto found = find(request)) return *found;  // by that one
    try {
        fs::path folder = downloader().download(request, cache);
        is_new(folder);
        return folder;
    } catch (const Unreachable& reason) {
        return otherwise(reason.what());
    }
}

}  // namespace unsloth::hub
