#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/safetensors.h"

namespace unsloth::formats {
namespace {

constexpr std::size_t alignment = 8;

std::string header_text(const std::vector<TensorDecl>& tensors, const SafetensorsWriter::Metadata& metadata) {
    Json header = Json::object();  // keeps its keys sorted
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::size_t offset = 0;
    for (const TensorDecl& tensor : tensors) {
        const std::size_t end = offset + tensor.bytes();
        header[tensor.name] = {
            {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = header.dump();
    while (text.size() % alignment != 0) text += ' ';
    return text;
}

}  // namespace

std::size_t TensorDecl::bytes() const {
    std::size_t product = spec::size_of(dtype);
    for (const int64_t size : shape) {
        UNSLOTH_CHECK(size >= 0, name, ": shape ", shape_text(shape));
        const auto n = static_cast<std::size_t>(size);
        UNSLOTH_CHECK(n == 0 || product <= std::numeric_limits<std::size_t>::max() / n, name, ": shape ",
                      shape_text(shape));
        product *= n;
    }
    return product;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorDecl> tensors, Metadata metadata)
    : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorDecl& a, const TensorDecl& b) {
        const std::size_t size_a = spec::size_of(a.dtype), size_b = spec::size_of(b.dtype);
        return size_a != size_b ? size_a > size_b : a.name < b.name;
    });
    const std::string header = header_text(tensors_, metadata);
    const uint64_t length = header.size();
    std::size_t offset = sizeof length + header.size();
    for (const TensorDecl& tensor : tensors_) {
        UNSLOTH_CHECK(tensor.name != "__metadata__", "no tensor may have this name");
        const bool is_new = slots_.emplace(tensor.name, Slot{offset, tensor.bytes(), 0}).second;
        UNSLOTH_CHECK(is_new, "tensor '", tensor.name, "' is declared twice");
        offset += tensor.bytes();
    }
    file_size_ = offset;

    file_.emplace(std::move(path), file_size_);
    file_->write_at(std::as_bytes(std::span(&length, 1)), 0);
    file_->write_at(std::as_bytes(std::span(header)), sizeof length);
}

SafetensorsWriter::Slot& SafetensorsWriter::slot(std::string_view name) {
    const auto it = slots_.find(name);
    UNSLOTH_CHECK(it != slots_.end(), "tensor '", name, "' was not declared");
    return it->second;
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
    write(name, slot(name).written, bytes);
}

void SafetensorsWriter::write(std::string_view name, std::size_t offset, std::span<const std::byte> bytes) {
    Slot& to = slot(name);
    UNSLOTH_CHECK(offset <= to.size && bytes.size() <= to.size - offset, "tensor '", name, "' has ", to.size,
                  " bytes, got ", offset + bytes.size());
    file_->write_at(bytes, to.offset + offset);
    std::atomic_ref(to.written).fetch_add(bytes.size(), std::memory_order_relaxed);
}

void SafetensorsWriter::finish() {
    for (const auto& [name, slot] : slots_)
        UNSLOTH_CHECK(slot.written == slot.size, "tensor '", name, "' has ", slot.written, " of ", slot.size, " bytes");
    file_->finish();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorBlob>& tensors,
                       SafetensorsWriter::Metadata metadata) {
    std::vector<TensorDecl> declarations;
    for (const TensorBlob& tensor : tensors) declarations.push_back(tensor.decl);
    SafetensorsWriter writer(path, std::move(declarations), std::move(metadata));
    for (const TensorBlob& tensor : tensors) writer.append(tensor.decl.name, tensor.data);
    writer.finish();
}

}  // namespace unsloth::formats
