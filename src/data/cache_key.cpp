#include "data/cache_key.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "data/cache_use.h"
#include "data/row_readers.h"
#include "unsloth/core/atomic_file.h"
#include "unsloth/core/build_id.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/interrupt.h"
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

void add_columns(ContentHash& key, const ColumnNames& columns) {
    for (const auto& [ours, theirs] : columns) key.add_field(ours), key.add_field(theirs);
}

// Each of these names all fields of a struct, so that a new one does not compile before somebody decides whether the
// encoded rows depend on it. Those that they do not depend on are cast to void.

void add_options(ContentHash& key, const RowOptions& options) {
    const auto& [objective, train_on_prompt, last_turn_only, max_seq_length, long_rows, max_positions, vocab_size,
                 max_prompt_length, truncation_mode, bos_id, vision, image_root, image_max_pixels, min_length] =
        options;
    key.add_field(cat(static_cast<int>(objective), " ", train_on_prompt, " ", last_turn_only, " ", max_seq_length, " ",
                      static_cast<int>(long_rows), " ", max_positions, " ", vocab_size, " ", bos_id, " ",
                      max_prompt_length, " ", static_cast<int>(truncation_mode), " ", image_max_pixels, " ",
                      min_length));
    key.add_field(vision ? describe(*vision) : "text alone");
    key.add_field(image_root.empty() ? "" : fs::absolute(image_root).string());
}

void add_options(ContentHash& key, const LoadOptions& options) {
    const auto& [format, reader, skip_bad_rows, keep_all_masked, log_warnings, workers] = options;
    const auto& [text_unit, invalid_utf8, columns, pairs] = reader;
    key.add_field(cat(static_cast<int>(format), " ", static_cast<int>(text_unit), " ", static_cast<int>(invalid_utf8),
                      " ", pairs, " ", skip_bad_rows, " ", keep_all_masked));
    add_columns(key, columns);
    (void)log_warnings, (void)workers;
}

void add_source(ContentHash& key, const SourceFiles& source, const fs::path& folder) {
    const auto& [name, files, format, columns, template_name, max_samples, parts] = source;
    key.add_field(cat("source ", static_cast<int>(format), " ", max_samples));
    key.add_field(template_name);
    add_columns(key, columns);
    for (const auto& [split, count] : parts) {
        const auto& [split_name, from, to, percent] = split;
        key.add_field(cat("part ", count, " ", from ? cat(*from) : "", ":", to ? cat(*to) : "", percent ? "%" : ""));
        (void)split_name;  // the files' content counts
    }
    for (const fs::path& file : files) {
        key.add_field(file.filename().string());  // its extension says how it is read
        key.add_field(content_hash(file, folder));
    }
    (void)name;  // the files' content counts
}

}  // namespace

std::string cache_key(const std::vector<SourceFiles>& sources, const DatasetOptions& options,
                      const CacheOptions& cache) {
    const auto& [folder, must_work, least_bytes, max_bytes, encoder_fingerprint] = cache;
    ContentHash key;
    key.add_field(version);
    key.add_field(build_id(reinterpret_cast<const void*>(&load_cached)));
    key.add_field(arrow_identity(sources));
    key.add_field(encoder_fingerprint);
    add_options(key, static_cast<const RowOptions&>(options));
    add_options(key, static_cast<const LoadOptions&>(options));
    for (const SourceFiles& source : sources) {
        add_source(key, source, folder);
        if (options.vision)  // images are looked for next to the files
            for (const fs::path& file : source.files) key.add_field(fs::absolute(file).parent_path().string());
    }
    (void)must_work, (void)least_bytes, (void)max_bytes;
    return key.hex();
}

}  // namespace unsloth::data
