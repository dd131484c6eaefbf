#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "formats/gguf/layout.h"
#include "unsloth/core/error.h"
#include "unsloth/core/open_file.h"
#include "unsloth/formats/gguf.h"

namespace unsloth::formats {
namespace {

/// Bytes of a value of fixed size; 0 for strings and arrays.
std::size_t size_of_value(GgufValueType type) {
    switch (type) {
        case GgufValueType::u8:
        case GgufValueType::i8:
        case GgufValueType::boolean:
            return 1;
        case GgufValueType::u16:
        case GgufValueType::i16:
            return 2;
        case GgufValueType::u32:
        case GgufValueType::i32:
        case GgufValueType::f32:
            return 4;
        case GgufValueType::u64:
        case GgufValueType::i64:
        case GgufValueType::f64:
            return 8;
        case GgufValueType::string:
        case GgufValueType::array:
            return 0;
    }
    return 0;
}

/// The front of a file, taken piece by piece; never beyond its end.
class Cursor {
  public:
    Cursor(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

    std::size_t place() const { return place_; }
    std::size_t left() const { return bytes_.size() - place_; }
    template <class... Args>
    [[noreturn]] void fail(const Args&... args) const {
        throw Error("checkpoint.damaged-file", cat(where_, ": byte ", place_, ": ", args...),
                    "The file is damaged or was cut off; make or download it again.");
    }
    std::span<const std::byte> take(uint64_t size, const std::string& what) {
        if (size > left()) fail(what, " takes ", size, " bytes, and the file has ", left(), " more");
        const auto piece = bytes_.subspan(place_, static_cast<std::size_t>(size));
        place_ += piece.size();
        return piece;
    }
    template <class T>
    T number(const std::string& what) {
        T value;
        std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
        return value;
    }
    std::span<const std::byte> text_bytes(const std::string& what) { return take(number<uint64_t>(what), what); }
    /// A key or a tensor's name: 1 to `longest` characters of printable ASCII, as the format wants.
    std::string name(std::size_t longest, const std::string& what) {
        const auto bytes = text_bytes(what);
        if (bytes.empty() || bytes.size() > longest)
            fail(what, " has ", bytes.size(), " bytes; expected 1 to ", longest);
        for (const std::byte byte : bytes)
            if (byte < std::byte{0x20} || byte > std::byte{0x7E})
                fail(what, " holds a byte that is no printable ASCII");
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

  private:
    std::span<const std::byte> bytes_;
    std::string where_;
    std::size_t place_ = 0;
};

GgufValueType read_type(Cursor& cursor, const std::string& what) {
    const auto type = cursor.number<uint32_t>(what);
    if (type > static_cast<uint32_t>(GgufValueType::f64)) cursor.fail(what, ": the value type ", type, " is not known");
    return static_cast<GgufValueType>(type);
}

GgufField read_field(Cursor& cursor) {
    GgufField field;
    field.key = cursor.name(gguf::longest_key, "a field's key");
    const std::string what = cat("field '", field.key, "'");
    field.type = read_type(cursor, what);
    if (field.type == GgufValueType::string) {
        field.data = cursor.text_bytes(what);
        return field;
    }
    if (field.type != GgufValueType::array) {
        field.data = cursor.take(size_of_value(field.type), what);
        return field;
    }
    field.element = read_type(cursor, what);
    field.count = cursor.number<uint64_t>(what);
    const std::size_t size = size_of_value(field.element);
    if (field.element == GgufValueType::array) cursor.fail(what, " is an array of arrays, which no reader takes");
    // A string takes at least the eight bytes of its length.
    if (field.count > cursor.left() / (size == 0 ? sizeof(uint64_t) : size))
        cursor.fail(what, ": ", field.count, " elements do not fit into what is left of the file");
    if (size != 0) {
        field.data = cursor.take(field.count * size, what);
        return field;
    }
    Cursor elements = cursor;
    for (uint64_t i = 0; i < field.count; ++i) elements.text_bytes(what);
    field.data = cursor.take(elements.place() - cursor.place(), what);
    return field;
}

/// A tensor's description; `offset` receives the offset of its data after the header. Its `data` is not set.
GgufTensor read_tensor(Cursor& cursor, uint64_t* offset, uint64_t* bytes) {
    GgufTensor tensor;
    tensor.name = cursor.name(gguf::longest_name, "a tensor's name");
    const std::string what = cat("tensor '", tensor.name, "'");
    const auto dimensions = cursor.number<uint32_t>(what);
    if (dimensions > gguf::most_dimensions)
        cursor.fail(what, " has ", dimensions, " dimensions; expected up to ", gguf::most_dimensions);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
        const auto size = cursor.number<uint64_t>(what);
        if (size == 0 || size > static_cast<uint64_t>(INT64_MAX) / elements)
            cursor.fail(what, ": dimension ", i, " of ", size);
        elements *= size;
        tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = cursor.number<uint32_t>(what);
    tensor.type = find_ggml_type(type);
    if (tensor.type == nullptr) cursor.fail(what, ": the type ", type, " is not known");
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();  // of no dimension: a scalar
    if (row % tensor.type->block != 0)
        cursor.fail(what, ": rows of ", row, " are no multiple of ", tensor.type->name, "'s block of ",
                    tensor.type->block);
    const uint64_t blocks = elements / static_cast<uint64_t>(tensor.type->block);
    if (blocks > static_cast<uint64_t>(INT64_MAX) / static_cast<uint64_t>(tensor.type->bytes))
        cursor.fail(what, ": ", elements, " elements");
    *bytes = blocks * static_cast<uint64_t>(tensor.type->bytes);
    *offset = cursor.number<uint64_t>(what);
    return tensor;
}

template <class T>
T value_as(std::span<const std::byte> data) {
    T value;
    std::memcpy(&value, data.data(), sizeof value);
    return value;
}

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::optional<int64_t> GgufField::integer() const {
    switch (type) {
        case GgufValueType::u8:
            return value_as<uint8_t>(data);
        case GgufValueType::i8:
            return value_as<int8_t>(data);
        case GgufValueType::u16:
            return value_as<uint16_t>(data);
        case GgufValueType::i16:
            return value_as<int16_t>(data);
        case GgufValueType::u32:
            return value_as<uint32_t>(data);
        case GgufValueType::i32:
            return value_as<int32_t>(data);
        case GgufValueType::i64:
            return value_as<int64_t>(data);
        case GgufValueType::u64: {
            const auto value = value_as<uint64_t>(data);
            if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
            return static_cast<int64_t>(value);
        }
        default:
            return std::nullopt;
    }
}

std::optional<double> GgufField::number() const {
    if (type == GgufValueType::f32) return value_as<float>(data);
    if (type == GgufValueType::f64) return value_as<double>(data);
    const auto whole = integer();
    if (!whole) return std::nullopt;
    return static_cast<double>(*whole);
}

std::optional<std::string> GgufField::text() const {
    if (type != GgufValueType::string) return std::nullopt;
    return text_of(data);
}

std::vector<std::string> GgufField::texts() const {
    std::vector<std::string> result;
    if (type != GgufValueType::array || element != GgufValueType::string) return result;
    Cursor cursor(data, key);
    for (uint64_t i = 0; i < count; ++i) result.push_back(text_of(cursor.text_bytes(key)));
    return result;
}

std::string GgufField::summary() const {
    static constexpr const char* names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                            "bool", "string", "array", "u64", "i64", "f64"};
    if (type == GgufValueType::array) return cat(count, " x ", names[static_cast<int>(element)]);
    if (type == GgufValueType::boolean) return value_as<uint8_t>(data) != 0 ? "true" : "false";
    if (type != GgufValueType::string)
        return integer() ? cat(*integer()) : number() ? cat(*number()) : "a large integer";
    std::string text = text_of(data);
    std::replace(text.begin(), text.end(), '\n', ' ');
    constexpr std::size_t longest = 60;
    if (text.size() <= longest) return text;
    std::size_t end = longest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not within a character
    return cat(text.substr(0, end), "… (", data.size(), " bytes)");
}

int64_t GgufTensor::elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
}

bool GgufFile::is_gguf(const std::filesystem::path& path) {
    const Descriptor file = open_to_read(path);
    std::string start(gguf::magic.size(), '\0');
    return ::pread(file.get(), start.data(), start.size(), 0) == static_cast<ssize_t>(start.size()) &&
           start == gguf::magic;
}

GgufFile::GgufFile(const std::filesystem::path& path) : map_(path) {
    const std::string where = path.string();
    Cursor cursor(map_.bytes(), where);
    if (text_of(cursor.take(gguf::magic.size(), "the magic")) != gguf::magic)
        throw Error("checkpoint.damaged-file", cat(where, ": not a GGUF file: it does not begin with 'GGUF'"));
    version_ = cursor.number<uint32_t>("the version");
    if (version_ != 2 && version_ != 3)
        throw Error("model.wrong-file-format",
                    cat(where, ": GGUF version ", version_, "; this program reads versions 2 and 3, little-endian"));
    const auto tensor_count = cursor.number<uint64_t>("the number of tensors");
    const auto field_count = cursor.number<uint64_t>("the number of fields");

    // Nothing is reserved by a count: each entry takes bytes, so a false count runs into the end of the file.
    std::unordered_set<std::string> seen;
    for (uint64_t i = 0; i < field_count; ++i) {
        fields_.push_back(read_field(cursor));
        if (!seen.insert(fields_.back().key).second) cursor.fail("the field '", fields_.back().key, "' is there twice");
    }
    std::size_t alignment = gguf::default_alignment;
    if (const GgufField* const field = find_field(gguf::alignment_key)) {
        const auto value = field->integer();
        if (field->type != GgufValueType::u32 || !value || *value <= 0 ||
            !std::has_single_bit(static_cast<uint64_t>(*value)))
            cursor.fail("general.alignment must be a power of two, found ", field->summary());
        alignment = static_cast<std::size_t>(*value);
    }

    std::vector<uint64_t> sizes;
    uint64_t expected = 0;
    seen.clear();
    for (uint64_t i = 0; i < tensor_count; ++i) {
        uint64_t offset = 0, bytes = 0;
        tensors_.push_back(read_tensor(cursor, &offset, &bytes));
        const std::string& name = tensors_.back().name;
        if (!seen.insert(name).second) cursor.fail("the tensor '", name, "' is there twice");
        if (offset != expected)
            cursor.fail("tensor '", name, "' is at offset ", offset, "; the one before it ends at ", expected);
        if (bytes > map_.bytes().size()) cursor.fail("tensor '", name, "' takes ", bytes, " bytes, more than the file");
        sizes.push_back(bytes);
        expected = gguf::aligned(offset + bytes, alignment);
        if (expected > 2 * map_.bytes().size() + alignment) cursor.fail("the tensors take more bytes than the file");
    }
    if (tensors_.empty()) return;
    cursor.take(gguf::aligned(cursor.place(), alignment) - cursor.place(), "the padding after the header");
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        tensors_[i].data = cursor.take(sizes[i], cat("tensor '", tensors_[i].name, "'"));
        const std::size_t padding = gguf::aligned(sizes[i], alignment) - sizes[i];
        cursor.take(std::min(padding, cursor.left()), "padding");  // the last tensor's may be missing
    }
    if (cursor.left() != 0) cursor.fail(cursor.left(), " bytes after the last tensor");
}

const GgufField* GgufFile::find_field(std::string_view key) const {
    const auto it = std::find_if(fields_.begin(), fields_.end(), [&](const GgufField& f) { return f.key == key; });
    return it == fields_.end() ? nullptr : &*it;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const GgufTensor& t) { return t.name == name; });
    return it == tensors_.end() ? nullptr : &*it;
}

}  // namespace unsloth::formats
