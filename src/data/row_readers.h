// The kinds of files that open_rows() reads.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/byte_stream.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

// Each takes a window that begins after the byte order mark.
std::unique_ptr<RowReader> read_json_lines(const std::filesystem::path& path, const ReaderOptions& options,
                                           TextWindow window);
std::unique_ptr<RowReader> read_json_array(const std::filesystem::path& path, const ReaderOptions& options,
                                           TextWindow window);
std::unique_ptr<RowReader> read_plain_text(const std::filesystem::path& path, const ReaderOptions& options,
                                           TextWindow window);
/// `delimiter` 0: found in the header.
std::unique_ptr<RowReader> read_table(const std::filesystem::path& path, const ReaderOptions& options,
                                      TextWindow window, char delimiter);
/// Parquet and Arrow files. Not from a window: Parquet is read from its end.
std::unique_ptr<RowReader> read_by_arrow(const std::filesystem::path& path, const ReaderOptions& options);

/// What reads them.
struct ArrowReading {
    const void* code = nullptr;  ///< an address within the library; null: there is none
    std::string version;         ///< of Arrow
};
ArrowReading arrow_reading();
bool is_read_by_arrow(const std::filesystem::path& path);

}  // namespace unsloth::data
