// TensorBoard's event files: records of protocol buffers, as TensorFlow's writer makes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unsloth::report {

/// CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(std::string_view bytes);

/// A record's frame: length, its masked checksum, the bytes, their masked checksum.
std::string framed_record(std::string_view bytes);

/// The event that begins a file.
std::string version_event(double wall_time);
/// Values by their tags, of one step.
std::string scalars_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& values);
/// A text that TensorBoard shows as Markdown.
std::string text_event(double wall_time, int64_t step, const std::string& tag, const std::string& text);

/// The name that TensorBoard looks for: events.out.tfevents.SECONDS.HOST.PROCESS.
std::string event_file_name(double wall_time);

}  // namespace unsloth::report
