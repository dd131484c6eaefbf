#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/safetensors.h"

namespace unsloth {
namespace {

constexpr std::size_t alignment = 8;

std::string header_text(const std::vector<TensorDecl>& tensors, const SafetensorsWriter::Metadata& metadata) {
    formats::Json header = formats::Json::object();  // keeps its keys sorted
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

Error write_error(const std::filesystem::path& path, const char* action) {
    const int code = errno;
    return runtime_failure(cat("cannot ", action, " ", path.string(), ": ", std::strerror(code)),
                           code == ENOSPC || code == EDQUOT ? "Free some space, or choose another folder." : "");
}

}  // namespace

std::size_t TensorDecl::bytes() const {
    std::size_t product = size_of(dtype);
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
    : path_(std::move(path)),
      temporary_(path_.string() + ".tmp-" + std::to_string(::getpid())),
      tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorDecl& a, const TensorDecl& b) {
        const std::size_t size_a = size_of(a.dtype), size_b = size_of(b.dtype);
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

    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) throw write_error(temporary_, "create");
    try {
        reserve_space();
        write_at(std::as_bytes(std::span(&length, 1)), 0);
        write_at(std::as_bytes(std::span(header)), sizeof length);
    } catch (...) {  // the destructor does not run for an object that was never made
        ::close(fd_);
        ::unlink(temporary_.c_str());
        throw;
    }
}

SafetensorsWriter::~SafetensorsWriter() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

void SafetensorsWriter::reserve_space() const {
    // Where the file system can reserve, a full disk shows now and not after an hour of work. Others answer ENOTSUP.
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(file_size_)) == 0) return;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw write_error(path_, "reserve space for");
}

void SafetensorsWriter::write_at(std::span<const std::byte> bytes, std::size_t offset) const {
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (written < 0) {
            if (errno == EINTR) continue;
            throw write_error(path_, "write");
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
        offset += static_cast<std::size_t>(written);
    }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
    UNSLOTH_CHECK(fd_ >= 0, "the file is finished");
    const auto it = slots_.find(name);
    UNSLOTH_CHECK(it != slots_.end(), "tensor '", name, "' was not declared");
    Slot& slot = it->second;
    UNSLOTH_CHECK(bytes.size() <= slot.size - slot.written, "tensor '", name, "' has ", slot.size, " bytes, got ",
                  slot.written + bytes.size());
    write_at(bytes, slot.offset + slot.written);
    slot.written += bytes.size();
}

void SafetensorsWriter::finish() {
    UNSLOTH_CHECK(fd_ >= 0, "the file is finished");
    for (const auto& [name, slot] : slots_)
        UNSLOTH_CHECK(slot.written == slot.size, "tensor '", name, "' has ", slot.written, " of ", slot.size, " bytes");
    if (::fsync(fd_) != 0) throw write_error(path_, "flush");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw write_error(path_, "rename to");
    const int fd = std::exchange(fd_, -1);
    // Some file systems report a late write error only here.
    if (::close(fd) != 0) throw write_error(path_, "close");
    const auto parent = path_.parent_path();
    sync_path(parent.empty() ? std::filesystem::path(".") : parent);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorBlob>& tensors,
                       SafetensorsWriter::Metadata metadata) {
    std::vector<TensorDecl> declarations;
    for (const TensorBlob& tensor : tensors) declarations.push_back(tensor.decl);
    SafetensorsWriter writer(path, std::move(declarations), std::move(metadata));
    for (const TensorBlob& tensor : tensors) writer.append(tensor.decl.name, tensor.data);
    writer.finish();
}

}  // namespace unsloth
