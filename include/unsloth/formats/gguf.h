// GGUF version 3, the container of ggml and llama.cpp: metadata, tensor descriptions, tensor data.
//
// Source: ggml's docs/gguf.md. A file is: "GGUF", u32 version, u64 tensors, u64 fields; fields (key, type, value);
// tensors (name, sizes from the fastest dimension on, type, offset); from the next multiple of the alignment the data,
// every tensor at a multiple of it. Little-endian. Nothing in a file is trusted: every number is checked before it is
// used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/atomic_file.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/ggml_types.h"

namespace unsloth::formats {

/// The type of a field's value, or of an array's elements; the values are the file's.
enum class GgufValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// Fields to be written, in the order in which they were added. CheckError for a key that is there already.
class GgufMetadata {
  public:
    void add(std::string_view key, uint32_t value);
    void add(std::string_view key, float value);
    void add(std::string_view key, bool value);
    void add(std::string_view key, std::string_view value);
    void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
    void add(std::string_view key, const std::vector<std::string>& values);
    void add(std::string_view key, const std::vector<int32_t>& values);
    void add(std::string_view key, const std::vector<float>& values);
    void add(std::string_view key, const std::vector<bool>& values);

    uint64_t count() const { return keys_.size(); }
    const std::string& bytes() const { return bytes_; }

  private:
    void start(std::string_view key, GgufValueType type);
    void start_array(std::string_view key, GgufValueType element, std::size_t count);

    std::string bytes_;
    std::set<std::string, std::less<>> keys_;
};

/// What a file to be written declares. A vector has one row.
struct GgufTensorDecl {
    std::string name;
    GgmlType type = GgmlType::f32;
    std::vector<int64_t> shape;  ///< as everywhere here, rows before columns; the file states them reversed

    int64_t elements() const;
    std::size_t bytes() const { return ggml_bytes(type, elements()); }
};

/// Writes a file tensor by tensor, holding none of them. The file appears under its name only with finish().
/// Runtime Error as AtomicFile; CheckError for names that are too long or there twice, and for rows that are no
/// multiple of their type's block.
class GgufWriter {
  public:
    GgufWriter(std::filesystem::path path, const GgufMetadata& metadata, std::vector<GgufTensorDecl> tensors);

    /// The next bytes of the tensors' data, which come in the order of their declaration. CheckError when `name` is not
    /// the tensor whose turn it is, or the bytes are more than it has.
    void append(std::string_view name, std::span<const std::byte> bytes);
    /// CheckError when tensors are incomplete.
    void finish();
    std::size_t file_size() const { return file_size_; }

  private:
    std::vector<GgufTensorDecl> tensors_;
    std::vector<std::size_t> offsets_;  ///< of the tensors, from the start of the file
    std::size_t file_size_ = 0;
    std::size_t current_ = 0, written_ = 0;  ///< which tensor's turn it is, and how much of it is there
    std::optional<AtomicFile> file_;
};

/// A field of a file; `data` views the map.
struct GgufField {
    std::string key;
    GgufValueType type = GgufValueType::u8;
    GgufValueType element = GgufValueType::u8;  ///< of an array
    uint64_t count = 1;                         ///< elements of an array
    std::span<const std::byte> data;            ///< the value's bytes; of a string those after its length

    /// Any integer type that fits; nullopt for another type.
    std::optional<int64_t> integer() const;
    std::optional<double> number() const;  ///< a floating type or an integer
    std::optional<std::string> text() const;
    /// The elements of an array of strings; empty for another type.
    std::vector<std::string> texts() const;
    /// For people: the value, or how many of what. At most about 80 characters.
    std::string summary() const;
};

/// A tensor of a file; `data` views the map and is aligned to the file's alignment.
struct GgufTensor {
    std::string name;
    const GgmlTypeInfo* type = nullptr;
    std::vector<int64_t> shape;  ///< rows before columns
    std::span<const std::byte> data;

    int64_t elements() const;
};

/// One mapped file. Movable; views stay valid when it moves.
class GgufFile {
  public:
    /// Maps and checks a file: magic, versions 2 and 3, every length and count against what is left of the file, that
    /// keys and names are printable ASCII and unique, value types (arrays of arrays are refused, as llama.cpp does),
    /// known tensor types, rows that are multiples of their block, an alignment that is a power of two, and tensors one
    /// after the other without gaps other than padding. Input Error that names the file, the place and what is wrong.
    explicit GgufFile(const std::filesystem::path& path);
    /// Whether the file begins with the magic; false when it cannot be read.
    static bool is_gguf(const std::filesystem::path& path);

    uint32_t version() const { return version_; }
    const std::vector<GgufField>& fields() const { return fields_; }
    const GgufField* find_field(std::string_view key) const;  ///< nullptr: absent
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufTensor* find_tensor(std::string_view name) const;  ///< nullptr: absent
    std::size_t size() const { return map_.bytes().size(); }

  private:
    MappedFile map_;
    uint32_t version_ = 0;
    std::vector<GgufField> fields_;
    std::vector<GgufTensor> tensors_;
};

}  // namespace unsloth::formats
