// safetensors files: a validated read-only map, and a writer that streams.
//
// A file is: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, data. Nothing in a file
// is trusted: every number is checked before it is used, and a refusal names the file, the tensor and the offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/atomic_file.h"
#include "unsloth/core/files.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::formats {

/// A tensor inside a mapped file; lives as long as its SafetensorsFile. `data` need not be aligned to its type.
struct TensorView {
    std::string name;
    spec::DType dtype = spec::DType::f32;
    std::vector<int64_t> shape;  ///< empty: a scalar
    std::span<const std::byte> data;
    const MappedFile* file = nullptr;
    std::size_t file_offset = 0;  ///< of data[0] from the start of the file; `made` where memory holds it instead
    static constexpr std::size_t made = std::numeric_limits<std::size_t>::max();

    int64_t elements() const;
    /// Whether `data` may be read through a pointer to a type of this alignment.
    bool is_aligned(std::size_t alignment) const;
    /// Tells the system that the bytes were consumed, so that a file read once does not count as this process's memory.
    void drop() const noexcept {
        if (file_offset != made) file->drop(file_offset, data.size());
    }
};

/// "F32", "BF16", … as the header spells an element type.
std::string_view safetensors_name(spec::DType type);
/// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// What a file to be written declares.
struct TensorDecl {
    std::string name;
    spec::DType dtype = spec::DType::f32;
    std::vector<int64_t> shape;

    std::size_t bytes() const;
};

/// A tensor with its bytes, for small things built in memory.
struct TensorBlob {
    TensorDecl decl;
    std::vector<std::byte> data;
};

/// One mapped file. Movable; views stay valid when it moves.
class SafetensorsFile {
  public:
    /// Maps and checks a file: header length (at most 100,000,000 bytes and inside the file), UTF-8, JSON, duplicate
    /// names, known dtypes, shape x bits of an element = length, offsets in order without overlap or hole up to the
    /// file's end. Input Error otherwise.
    explicit SafetensorsFile(const std::filesystem::path& path);

    /// Sorted by name.
    const std::vector<TensorView>& tensors() const { return tensors_; }
    const TensorView* find(std::string_view name) const;  ///< nullptr: absent
    const TensorView& at(std::string_view name) const;    ///< input Error: absent
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const std::filesystem::path& path() const { return map_->path(); }
    std::size_t size() const { return map_->bytes().size(); }
    const MappedFile& map() const { return *map_; }

    /// Replaces tensors that `removed` names by these, which are the file's content in another form.
    void replace(const std::function<bool(const std::string& name)>& removed, std::vector<TensorBlob> made);

  private:
    std::unique_ptr<MappedFile> map_;
    std::vector<TensorBlob> made_;
    std::vector<TensorView> tensors_;
    std::map<std::string, std::string> metadata_;
};

/// Writes a file as its tensors become known, holding none of them. The header lists names in order; data is sorted by
/// falling element size, then by name, from a multiple of 8 on, so that every tensor is aligned to its type.
/// The file appears under its name only with finish(); until then it is an AtomicFile, removed by the destructor.
/// Runtime Error, naming path and reason, on any failure (no space: before the first tensor where the system can tell).
class SafetensorsWriter {
  public:
    using Metadata = std::map<std::string, std::string>;

    SafetensorsWriter(std::filesystem::path path, std::vector<TensorDecl> tensors,
                      Metadata metadata = {{"format", "pt"}});

    /// The tensors in the order of their data: writing in this order keeps the disk sequential. Any order is allowed.
    const std::vector<TensorDecl>& tensors() const { return tensors_; }
    /// The next bytes of a tensor: whole, or piece by piece. CheckError for an unknown name or too many bytes.
    void append(std::string_view name, std::span<const std::byte> bytes);
    /// Some bytes of a tensor from `offset` on, each byte once; for different ranges from several threads at once.
    void write(std::string_view name, std::size_t offset, std::span<const std::byte> bytes);
    /// fsync, rename, fsync of the folder. CheckError when a tensor is incomplete.
    void finish();
    std::size_t file_size() const { return file_size_; }

  private:
    struct Slot {
        std::size_t offset = 0, size = 0, written = 0;
    };

    Slot& slot(std::string_view name);

    std::vector<TensorDecl> tensors_;
    std::map<std::string, Slot, std::less<>> slots_;
    std::size_t file_size_ = 0;
    std::optional<AtomicFile> file_;
};

/// Writes tensors held in memory.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorBlob>& tensors,
                       SafetensorsWriter::Metadata metadata = {{"format", "pt"}});

}  // namespace unsloth::formats
