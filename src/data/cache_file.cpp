#include "data/cache_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::data {
namespace {

constexpr char magic[8] = {'U', 'N', 'S', 'L', 'R', 'O', 'W', '2'};

/// The start of a file. The words follow, then the records at a multiple of 8, then the report as JSON.
struct Header {
    char mark[8];
    uint64_t words, records, report_bytes;
    uint64_t words_hash, tail_hash;  ///< of the words; of records and report
    uint64_t own_hash;               ///< of the header up to here
    uint64_t reserved;
};
static_assert(sizeof(Header) == 64);

template <class T>
std::string_view bytes_of(const T* values, std::size_t count) {
    return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

uint64_t hash_of(std::initializer_list<std::string_view> parts) {
    ContentHash hash;
    for (const std::string_view part : parts) hash.add(part);
    return hash.word();
}

uint64_t header_hash(const Header& header) {
    return hash_of({bytes_of(&header, 1).substr(0, offsetof(Header, own_hash))});
}

/// Hash of a mapped range; what was looked at is given back, so that a large file does not fill the memory.
uint64_t hash_mapped(const MappedFile& file, std::size_t offset, std::size_t size) {
    constexpr std::size_t block = std::size_t{64} << 20;
    ContentHash hash;
    for (std::size_t done = 0; done < size; done += block) {
        const std::size_t count = std::min(block, size - done);
        hash.add(bytes_of(file.bytes().data() + offset + done, count));
        if (size > block) file.drop(offset + done, count);
    }
    return hash.word();
}

std::string to_json(const LoadReport& report) {
    const nlohmann::json json = {
        {"rows", report.rows},           {"bad_rows", report.bad_rows},     {"masked_rows", report.masked_rows},
        {"long_rows", report.long_rows}, {"short_rows", report.short_rows}, {"augmented_rows", report.augmented_rows},
        {"format", report.format},       {"warnings", report.warnings}};
    return json.dump();
}

/// Nothing when the text is no report.
std::optional<LoadReport> from_json(std::string_view text) {
    try {
        const nlohmann::json json = nlohmann::json::parse(text);
        for (const char* count : {"rows", "bad_rows", "masked_rows", "long_rows", "augmented_rows", "format"})
            if (!json.at(count).is_number_integer()) return std::nullopt;
        const int64_t short_rows = json.value("short_rows", int64_t{0});
        LoadReport report{json.at("rows"), json.at("bad_rows"),       json.at("masked_rows"), json.at("long_rows"),
                          short_rows,      json.at("augmented_rows"), json.at("format"),      json.at("warnings")};
        if (report.format < config::DataFormat::automatic || report.format > config::DataFormat::text)
            return std::nullopt;
        return report;
    } catch (const nlohmann::json::exception&) {
        return std::nullopt;
    }
}

constexpr std::size_t round_up(std::size_t size) {
    return (size + 7) / 8 * 8;
}

/// What is wrong with a file's header, or nullptr.
const char* defect(const MappedFile& file, const Header& header) {
    const std::size_t size = file.bytes().size();
    if (std::memcmp(header.mark, magic, sizeof magic) != 0 || header.own_hash != header_hash(header))
        return "its header is not sound";
    // Before anything is computed from them, which could overflow.
    if (header.words > size || header.records > size || header.report_bytes > size)
        return "its size is not what its header says";
    const std::size_t words = sizeof header + header.words * sizeof(int32_t), tail = round_up(words);
    if (size != tail + header.records * sizeof(RowRecord) + header.report_bytes)
        return "its size is not what its header says";
    if (hash_mapped(file, sizeof header, header.words * sizeof(int32_t)) != header.words_hash)
        return "its tokens do not match their checksum";
    if (hash_mapped(file, tail, size - tail) != header.tail_hash) return "its rows do not match their checksum";
    return nullptr;
}

/// Words that a row takes at least: what its runs say is looked at when it is read.
int64_t least_words(const RowRecord& row) {
    const bool all_trained = row.has(RowRecord::all_trained), given_labels = row.has(RowRecord::given_labels);
    const int64_t length = row.length;
    const int64_t labels = all_trained ? 0 : given_labels ? length : 1;
    return length + labels + row.words_after_labels();
}

/// Whether a record's numbers are consistent, and its row is within the file's words.
bool is_sound(const RowRecord& row, std::size_t words) {
    const auto upto_length = [&](int32_t count, int32_t least) { return count >= least && count <= row.length; };
    const auto end = static_cast<int64_t>(words);
    return row.length > 0 && upto_length(row.targets, 0) && upto_length(row.segments, 1) &&
           (row.segments > 1) == row.has(RowRecord::given_segments) && upto_length(row.longest, 1) && row.source >= 0 &&
           row.start >= 0 && row.start <= end && least_words(row) <= end - row.start;
}

}  // namespace

std::optional<DecodeBatch> open_cache_file(const std::filesystem::path& path) {
    std::optional<CacheFileUse> use = CacheFileUse::begin(path);
    if (!use) return std::nullopt;
    auto store = std::make_shared<Dataset::Store>();
    store->use = std::move(*use);
    store->file = MappedFile(path, store->use.fd());
    const auto bytes = store->file.bytes();
    Header header{};
    if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    const auto damaged = [&](const char* what) {
        log::warning(path.string(), ": this file of the cache is damaged: ", what, "; the rows are encoded again");
        return std::nullopt;
    };
    if (const char* what = bytes.size() < sizeof header ? "it is cut off" : defect(store->file, header);
        what != nullptr)
        return damaged(what);
    const std::byte* const tail = bytes.data() + round_up(sizeof header + header.words * sizeof(int32_t));
    store->words = {reinterpret_cast<const int32_t*>(bytes.data() + sizeof header), header.words};
    store->records = {reinterpret_cast<const RowRecord*>(tail), header.records};
    const auto sound = [&](const RowRecord& row) { return is_sound(row, header.words); };
    if (!std::all_of(store->records.begin(), store->records.end(), sound)) return damaged("a row is outside of it");
    auto report = from_json(bytes_of(tail + header.records * sizeof(RowRecord), header.report_bytes));
    if (!report) return damaged("its report is not sound");
    return DecodeBatch{std::move(store), std::move(*report)};
}

CacheWriter::CacheWriter(const std::filesystem::path& path)
    : file_(place_of(path), 0,
            "Free some space, choose another folder with data.cache_dir, or set it to \"\" to go without a cache."),
      use_(::dup(file_.fd())) {
    write(std::string(sizeof(Header), '\0'));
}

void CacheWriter::write(std::string_view bytes) {
    file_.write_at(std::as_bytes(std::span(bytes)), written_);
    written_ += bytes.size();
}

void CacheWriter::append(StorePart&& part) {
    const std::string_view words = bytes_of(part.words.data(), part.words.size());
    write(words);
    words_hash_.add(words);
    for (RowRecord& record : part.records) {
        record.start += static_cast<int64_t>(words_);
        records_.push_back(record);
    }
    words_ += part.words.size();
}

void CacheWriter::finish(const LoadReport& report) {
    const std::string text = to_json(report);
    const std::string_view records = bytes_of(records_.data(), records_.size());
    const std::size_t end = sizeof(Header) + words_ * sizeof(int32_t);
    write(std::string(round_up(end) - end, '\0'));
    write(records);
    write(text);

    Header header{};
    std::memcpy(header.mark, magic, sizeof magic);
    header.words = words_;
    header.records = records_.size();
    header.report_bytes = text.size();
    header.words_hash = words_hash_.word();
    header.tail_hash = hash_of({records, text});
    header.own_hash = header_hash(header);
    file_.write_at(std::as_bytes(std::span(&header, 1)), 0);
    (void)::flock(use_.get(), LOCK_SH);  // as CacheFileUse: no process may remove the file before it is opened
    file_.finish();
}

}  // namespace unsloth::data
