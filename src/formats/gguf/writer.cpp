#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "formats/gguf/layout.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/gguf.h"
#include "unsloth/formats/safetensors.h"

namespace unsloth::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

template <class T>
void put(std::string& out, T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out += text;
}

constexpr std::array<std::byte, gguf::default_alignment> zeros = {};

}  // namespace

void GgufMetadata::start(std::string_view key, GgufValueType type) {
    UNSLOTH_CHECK(!key.empty() && key.size() <= gguf::longest_key, "a key of ", key.size(), " bytes");
    const bool is_new = keys_.emplace(key).second;
    UNSLOTH_CHECK(is_new, "the field '", key, "' is there already");
    put_text(bytes_, key);
    put(bytes_, static_cast<uint32_t>(type));
}

void GgufMetadata::start_array(std::string_view key, GgufValueType element, std::size_t count) {
    start(key, GgufValueType::array);
    put(bytes_, static_cast<uint32_t>(element));
    put<uint64_t>(bytes_, count);
}

void GgufMetadata::add(std::string_view key, uint32_t value) {
    start(key, GgufValueType::u32);
    put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, float value) {
    start(key, GgufValueType::f32);
    put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, bool value) {
    start(key, GgufValueType::boolean);
    put<uint8_t>(bytes_, value ? 1 : 0);
}

void GgufMetadata::add(std::string_view key, std::string_view value) {
    start(key, GgufValueType::string);
    put_text(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<std::string>& values) {
    start_array(key, GgufValueType::string, values.size());
    for (const std::string& value : values) put_text(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<int32_t>& values) {
    start_array(key, GgufValueType::i32, values.size());
    for (const int32_t value : values) put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<float>& values) {
    start_array(key, GgufValueType::f32, values.size());
    for (const float value : values) put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<bool>& values) {
    start_array(key, GgufValueType::boolean, values.size());
    for (const bool value : values) put(bytes_, static_cast<uint8_t>(value));
}

int64_t GgufTensorDecl::elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) {
        UNSLOTH_CHECK(size > 0 && product <= INT64_MAX / size, name, ": shape ", shape_text(shape));
        product *= size;
    }
    return product;
}

GgufWriter::GgufWriter(std::filesystem::path path, const GgufMetadata& metadata, std::vector<GgufTensorDecl> tensors)
    : tensors_(std::move(tensors)) {
    std::string header(gguf::magic);
    put(header, gguf::version);
    put<uint64_t>(header, tensors_.size());
    put<uint64_t>(header, metadata.count());
    header += metadata.bytes();
    std::set<std::string_view> names;
    std::size_t offset = 0;
    for (const GgufTensorDecl& tensor : tensors_) {
        UNSLOTH_CHECK(!tensor.name.empty() && tensor.name.size() <= gguf::longest_name, "the name '", tensor.name, "'");
        UNSLOTH_CHECK(names.insert(tensor.name).second, "tensor '", tensor.name, "' is declared twice");
        UNSLOTH_CHECK(!tensor.shape.empty() && tensor.shape.size() <= gguf::most_dimensions, tensor.name, ": shape ",
                      shape_text(tensor.shape));
        UNSLOTH_CHECK(tensor.shape.back() % info_of(tensor.type).block == 0, tensor.name, ": rows of ",
                      tensor.shape.back(), " in blocks of ", info_of(tensor.type).block);
        put_text(header, tensor.name);
        put(header, static_cast<uint32_t>(tensor.shape.size()));
        for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) put(header, *size);
        put(header, static_cast<uint32_t>(tensor.type));
        put<uint64_t>(header, offset);
        offsets_.push_back(offset);
        offset = gguf::aligned(offset + tensor.bytes(), gguf::default_alignment);
    }
    header.resize(gguf::aligned(header.size(), gguf::default_alignment));
    for (std::size_t& place : offsets_) place += header.size();
    file_size_ = header.size() + offset;
    file_.emplace(std::move(path), file_size_);
    file_->write_at(std::as_bytes(std::span(header)), 0);
}

void GgufWriter::append(std::string_view name, std::span<const std::byte> bytes) {
    UNSLOTH_CHECK(current_ < tensors_.size() && tensors_[current_].name == name, "it is not the turn of tensor '", name,
                  "'");
    const std::size_t size = tensors_[current_].bytes();
    UNSLOTH_CHECK(bytes.size() <= size - written_, "tensor '", name, "' has ", size, " bytes, got ",
                  written_ + bytes.size());
    file_->write_at(bytes, offsets_[current_] + written_);
    written_ += bytes.size();
    if (written_ < size) return;
    const std::size_t end = offsets_[current_] + size;
    file_->write_at(std::span(zeros).first(gguf::aligned(end, gguf::default_alignment) - end), end);
    ++current_;
    written_ = 0;
}

void GgufWriter::finish() {
    UNSLOTH_CHECK(current_ == tensors_.size(), "tensor '", tensors_[current_].name, "' is incomplete");
    file_->finish();
}

}  // namespace unsloth::formats
