#include <cstring>

#include "data/cache_use.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/data/cache.h"

namespace unsloth::data {
namespace {

/// A file is the hash of its values, as text, and the values.
constexpr std::size_t digits = 32;

std::filesystem::path file_of(const CacheOptions& cache, const std::string& key) {
    return cache.folder / (key + ".values");
}

std::string hash_of(std::string_view bytes) {
    ContentHash hash;
    hash.add(bytes);
    return hash.hex();
}

}  // namespace

std::optional<std::vector<float>> kept_values(const CacheOptions& cache, const std::string& key, std::size_t count) {
    if (cache.folder.empty()) return std::nullopt;
    const std::filesystem::path path = file_of(cache, key);
    const auto use = CacheFileUse::begin(path);
    if (!use) return std::nullopt;
    const MappedFile file(path, use->fd());
    const std::string_view content(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    const std::size_t bytes = count * sizeof(float);
    if (content.size() != digits + bytes) return std::nullopt;
    const std::string_view values = content.substr(digits);
    if (content.substr(0, digits) != hash_of(values)) return std::nullopt;
    std::vector<float> result(count);
    if (bytes > 0) std::memcpy(result.data(), values.data(), bytes);
    return result;
}

void keep_values(const CacheOptions& cache, const std::string& key, std::span<const float> values) {
    if (cache.folder.empty()) return;
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    try {
        write_file_atomically(Folder::made(cache.folder).require(), file_of(cache, key).filename(),
                              hash_of(bytes) + std::string(bytes));
        if (cache.max_bytes > 0) prune_cache(cache.folder, cache.max_bytes);
    } catch (const std::exception& failure) {
        log::warning(failure.what(), "; the next run makes these values again");
    }
}

}  // namespace unsloth::data
