#include "unsloth/data/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "data/byte_stream.h"
#include "data/cache_file.h"
#include "data/row_readers.h"
#include "unsloth/core/build_id.h"
#include "unsloth/core/error.h"
#include "unsloth/core/file_lock.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/version.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

std::string hash_content(const fs::path& path) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    ContentHash hash;
    constexpr std::size_t block = std::size_t{64} << 20;
    std::size_t zeros = 0;  // a hole of a sparse file costs no disk, but days to hash
    for (std::size_t at = 0; at < bytes.size(); at += block) {
        const std::size_t count = std::min(block, bytes.size() - at);
        const std::string_view part(reinterpret_cast<const char*>(bytes.data()) + at, count);
        zeros = part[0] == '\0' && part.substr(1) == part.substr(0, count - 1) ? zeros + count : 0;
        if (static_cast<int64_t>(zeros) > RowReader::give_up_bytes)
            throw Error("data.not-rows", cat(path.string(), ": no row ends within 1 GiB of zeros"),
                        "This is no file of rows.");
        hash.add(part);
        stop_if_interrupted("stopped while the data was read; nothing was written");
        file.drop(at, count);
    }
    return hash.hex();
}

/// Content hash of a data file. That of a large one is remembered together with what the system says about the file;
/// one that changed within the last seconds is not, for its next change might leave the same time.
std::string content_hash(const fs::path& path, const fs::path& folder) {
    constexpr int64_t large = int64_t{8} << 20, settled_seconds = 3;
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0)
        throw Error("disk.cannot-read", cat("cannot open ", path.string(), ": ", std::strerror(errno)));
    if (status.st_size < large ||
        ::time(nullptr) - std::max(status.st_mtim.tv_sec, status.st_ctim.tv_sec) < settled_seconds)
        return hash_content(path);
    const std::string file = fs::absolute(path).string(), identity = file_identity(file);
    ContentHash name;
    name.add_field(file);
    name.add_field(identity);
    const fs::path memo = folder / ("hash-" + name.hex());
    if (const auto known = read_memo(memo); known && known->file == file && known->identity == identity)
        return known->hash;
    const std::string hash = hash_content(path);
    write_file_atomically(memo, cat(hash, "\n", identity, "\n", file));
    return hash;
}

/// What reads Parquet and Arrow, which is not in this library; nothing where no file is such.
std::string arrow_identity(const std::vector<SourceFiles>& sources) {
    const auto has_some = [](const SourceFiles& source) {
        return std::any_of(source.files.begin(), source.files.end(), is_read_by_arrow);
    };
    if (std::none_of(sources.begin(), sources.end(), has_some)) return {};
    const ArrowReading reading = arrow_reading();
    return reading.code == nullptr ? "" : cat(build_id(reading.code), " Arrow ", reading.version);
}

std::string key_of(const std::vector<SourceFiles>& sources, const DatasetOptions& options, const CacheOptions& cache) {
    ContentHash key;
    key.add_field(version);
    key.add_field(build_id(reinterpret_cast<const void*>(&load_cached)));
    key.add_field(arrow_identity(sources));
    key.add_field(cache.encoder_fingerprint);
    key.add_field(cat(static_cast<int>(options.objective), " ", options.train_on_prompt, " ",
                      options.train_on_last_turn_only, " ", options.max_seq_length, " ", options.max_positions, " ",
                      options.vocab_size, " ", options.bos_id, " ", options.skip_bad_rows, " ", options.keep_all_masked,
                      " ", static_cast<int>(options.long_rows), " ", static_cast<int>(options.reader.text_unit), " ",
                      static_cast<int>(options.reader.invalid_utf8)));
    for (const SourceFiles& source : sources) {
        key.add_field(cat("source ", static_cast<int>(source.format), " ", source.max_samples));
        key.add_field(source.template_name);
        for (const auto& [ours, theirs] : source.columns) key.add_field(ours), key.add_field(theirs);
        for (const fs::path& file : source.files) {
            key.add_field(file.filename().string());  // its extension says how it is read
            key.add_field(content_hash(file, cache.folder));
        }
    }
    return key.hex();
}

Dataset dataset_of(CachedRows rows, const DatasetOptions& options) {
    return Dataset(std::move(rows.store), stats_of(rows.report, options));
}

std::optional<CachedRows> open_known(const fs::path& path) {
    std::optional<CachedRows> rows = open_cache_file(path);
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
            std::error_code missing;  // said in better words by whoever opens it
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
    const fs::path path = cache.folder / (key_of(files, options, cache) + ".rows");
    if (auto rows = open_known(path)) return dataset_of(std::move(*rows), options);
    for (SourceFiles& source : files) source.format = find_format(source, options.reader, options.skip_bad_rows);
    const bool tokenized = all_tokenized(files);
    if (!tokenized && cache.encoder_fingerprint.empty()) return Dataset::load(sources, options, encoder);

    const fs::path beside = path.string() + ".lock";
    const FileLock lock(Folder::named(cache.folder), beside.filename(), Owner::ours, FileLock::After::removed,
                        cat("encodes the same rows (", beside.string(), ")"));
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
        log::warning(cache.folder.string(), " was removed while it was filled; it is made again");
    }
    return Dataset::load(sources, options, encoder);
}

}  // namespace unsloth::data
