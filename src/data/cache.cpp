#include "unsloth/data/cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "data/cache_file.h"
#include "data/cache_key.h"
#include "unsloth/core/error.h"
#include "unsloth/core/file_lock.h"
#include "unsloth/core/log.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

Dataset dataset_of(DecodeBatch rows, const DatasetOptions& options) {
    rows.store->vision = options.vision;
    return Dataset(std::move(rows.store), stats_of(rows.report, options));
}

std::optional<DecodeBatch> open_known(const fs::path& path) {
    std::optional<DecodeBatch> rows = open_cache_file(path);
    if (rows)
        log::info(rows->store->rows(), " encoded rows of format ", format_name(rows->report.format),
                  " from the cache: ", path.string());
    return rows;
}

bool make_folder(const CacheOptions& cache) {
    const Folder folder = Folder::made(cache.folder);
    int failure = folder.failure();
    if (folder.open() && ::faccessat(folder.fd(), ".", W_OK | X_OK, 0) != 0) failure = errno;
    if (failure == 0) return true;
    const std::string what = cat("cannot use ", cache.folder.string(), " as data.cache_dir: ", std::strerror(failure));
    if (cache.must_work)
        throw Error("disk.cannot-write", what, "Choose another folder, or set it to \"\" to go without a cache.");
    log::warning(what, "; going without a cache");
    return false;
}

int64_t total_bytes(const std::vector<SourceFiles>& sources) {
    int64_t bytes = 0;
    for (const SourceFiles& source : sources)
        for (const fs::path& file : source.files) {
            std::error_code missing;  // the code that opens the file reports it in better words
            const auto size = fs::file_size(file, missing);
            if (!missing) bytes += static_cast<int64_t>(size);
        }
    return bytes;
}

}  // namespace

CacheOptions cache_options(const std::string& cache_dir) {
    CacheOptions options;
    if (cache_dir != "auto") {
        options.folder = cache_dir;
        return options;
    }
    constexpr int64_t worthwhile = int64_t{1} << 20;
    options.must_work = false;
    options.least_bytes = worthwhile;
    const char* const caches = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    if (caches != nullptr && *caches == '/')
        options.folder = fs::path(caches) / "unsloth-train";
    else if (home != nullptr && *home == '/')
        options.folder = fs::path(home) / ".cache" / "unsloth-train";
    return options;
}

namespace {

/// By way of the cache's folder, which must be there. `files` are those of `sources`.
Dataset load_through(const std::vector<config::DataSource>& sources, std::vector<SourceFiles> files,
                     const DatasetOptions& options, const EncoderOnDemand& encoder, const CacheOptions& cache) {
    const fs::path path = cache.folder / (cache_key(files, options, cache) + ".rows");
    if (auto rows = open_known(path)) return dataset_of(std::move(*rows), options);
    for (SourceFiles& source : files) source.format = find_format(source, options.reader, options.skip_bad_rows);
    const bool tokenized = all_tokenized(files);
    if (!tokenized && cache.encoder_fingerprint.empty()) return Dataset::load(sources, options, encoder);

    const fs::path lock_path = path.string() + ".lock";
    const FileLock lock(Folder::named(cache.folder), lock_path.filename(), Owner::ours, FileLock::After::removed,
                        cat("encodes the same rows (", lock_path.string(), ")"));
    if (auto rows = open_known(path)) return dataset_of(std::move(*rows), options);  // another process was at it
    remove_leftovers(cache.folder);
    CacheWriter writer(path);
    writer.finish(load_rows(files, options, encoders_of(files, encoder), writer));
    auto rows = open_cache_file(path);
    if (!rows)
        throw Error("disk.cannot-write", cat(path.string(), ": what was just written cannot be read back"),
                    "Check the disk, or choose another data.cache_dir.");
    log::info("the encoded rows are in the cache now: ", path.string());
    if (cache.max_bytes > 0) prune_cache(cache.folder, cache.max_bytes);
    return dataset_of(std::move(*rows), options);
}

}  // namespace

Dataset load_cached(const std::vector<config::DataSource>& sources, const DatasetOptions& options,
                    const EncoderOnDemand& encoder, const CacheOptions& cache) {
    if (cache.folder.empty()) return Dataset::load(sources, options, encoder);
    std::vector<SourceFiles> files;
    for (const config::DataSource& source : sources) files.push_back(with_files(source));
    if (total_bytes(files) < cache.least_bytes) return Dataset::load(sources, options, encoder);

    constexpr int most_attempts = 3;
    for (int attempt = 1; make_folder(cache); ++attempt) {
        try {
            return load_through(sources, files, options, encoder, cache);
        } catch (const Error&) {
            if (attempt == most_attempts || fs::exists(cache.folder)) throw;
        }
        log::warning(cache.folder.string(), " was removed while it was filled; it is created again");
    }
    return Dataset::load(sources, options, encoder);
}

}  // namespace unsloth::data
