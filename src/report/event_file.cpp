#include "unsloth/report/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::report {
namespace {

std::array<uint32_t, 256> crc_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
        table[i] = crc;
    }
    return table;
}

template <class Value>
std::string little_endian(Value value) {
    static_assert(std::endian::native == std::endian::little);
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

// A checksum of bytes that hold checksums would be weak: so the format turns and shifts it.
std::string masked_crc(std::string_view bytes) {
    const uint32_t crc = crc32c(bytes);
    return little_endian(((crc >> 15) | (crc << 17)) + 0xA282EAD8U);
}

// The fields of a protocol buffer, by wire type.
enum Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

std::string varint_of(uint64_t value) {
    std::string text;
    for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
    return text + static_cast<char>(value);
}
std::string tag(int field, Wire wire) {
    return varint_of(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}
std::string bytes_field(int field, std::string_view content) {
    return tag(field, bytes) + varint_of(content.size()) + std::string(content);
}

// message Event: 1 double wall_time, 2 int64 step, 3 string file_version, 5 Summary summary
std::string event(double wall_time, int64_t step, const std::string& rest) {
    return tag(1, fixed64) + little_endian(wall_time) + tag(2, varint) + varint_of(static_cast<uint64_t>(step)) + rest;
}

}  // namespace

uint32_t crc32c(std::string_view text) {
    static const std::array<uint32_t, 256> table = crc_table();
    uint32_t crc = ~0U;
    for (const char letter : text) crc = table[(crc ^ static_cast<unsigned char>(letter)) & 0xFF] ^ (crc >> 8);
    return ~crc;
}

std::string framed_record(std::string_view content) {
    const std::string length = little_endian(static_cast<uint64_t>(content.size()));
    return length + masked_crc(length) + std::string(content) + masked_crc(content);
}

std::string version_event(double wall_time) {
    return tag(1, fixed64) + little_endian(wall_time) + bytes_field(3, "brain.Event:2");
}

// message Summary: 1 repeated Value; Value: 1 string tag, 2 float simple_value, 8 TensorProto tensor, 9 SummaryMetadata
std::string scalars_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& values) {
    std::string summary;
    for (const auto& [name, value] : values)
        summary += bytes_field(1, bytes_field(1, name) + tag(2, fixed32) + little_endian(static_cast<float>(value)));
    return event(wall_time, step, bytes_field(5, summary));
}

// TensorProto: 1 dtype (7: string), 2 shape { 2 dim { 1 size } }, 8 string_val; SummaryMetadata: 1 plugin_data { 1 name
// }
std::string text_event(double wall_time, int64_t step, const std::string& name, const std::string& text) {
    const std::string shape = bytes_field(2, bytes_field(2, tag(1, varint) + varint_of(1)));
    const std::string tensor = tag(1, varint) + varint_of(7) + shape + bytes_field(8, text);
    const std::string metadata = bytes_field(1, bytes_field(1, "text"));
    const std::string value = bytes_field(1, name) + bytes_field(8, tensor) + bytes_field(9, metadata);
    return event(wall_time, step, bytes_field(5, bytes_field(1, value)));
}

std::string event_file_name(double wall_time) {
    char host[256] = "localhost";
    if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "localhost");
    return cat("events.out.tfevents.", static_cast<int64_t>(wall_time), ".", host, ".", ::getpid());
}

}  // namespace unsloth::report
