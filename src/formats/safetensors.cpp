#include "unsloth/formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "formats/json.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

constexpr std::size_t max_header_bytes = 100'000'000;
constexpr std::size_t length_bytes = 8;

constexpr std::array<std::pair<std::string_view, spec::DType>, 22> dtype_names = {{
    {"F32", spec::DType::f32},
    {"BF16", spec::DType::bf16},
    {"F16", spec::DType::f16},
    {"F64", spec::DType::f64},
    {"I64", spec::DType::i64},
    {"I32", spec::DType::i32},
    {"I16", spec::DType::i16},
    {"I8", spec::DType::i8},
    {"U8", spec::DType::u8},
    {"BOOL", spec::DType::boolean},
    {"F8_E4M3", spec::DType::f8_e4m3},
    {"F8_E5M2", spec::DType::f8_e5m2},
    {"U64", spec::DType::u64},
    {"U32", spec::DType::u32},
    {"U16", spec::DType::u16},
    {"C64", spec::DType::c64},
    {"F8_E4M3FNUZ", spec::DType::f8_e4m3fnuz},
    {"F8_E5M2FNUZ", spec::DType::f8_e5m2fnuz},
    {"F8_E8M0", spec::DType::f8_e8m0},
    {"F6_E2M3", spec::DType::f6_e2m3},
    {"F6_E3M2", spec::DType::f6_e3m2},
    {"F4", spec::DType::f4},
}};

std::optional<spec::DType> dtype_from(std::string_view name) {
    for (const auto& [text, type] : dtype_names)
        if (text == name) return type;
    return std::nullopt;
}

/// The header's text; refuses a length that the file cannot hold.
std::string_view header_text(const MappedFile& map) {
    const auto bytes = map.bytes();
    const std::string path = map.path().string();
    if (bytes.size() < length_bytes)
        throw Error("checkpoint.damaged-file",
                    cat(path, ": no safetensors file: ", bytes.size(), " bytes, shorter than the header's length"),
                    "The file may be incomplete; download it again.");
    uint64_t length = 0;  // little-endian, as every machine that this program runs on
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > max_header_bytes)
        throw Error("checkpoint.damaged-file",
                    cat(path, ": no safetensors file: a header of ", length, " bytes, more than ", max_header_bytes));
    if (length > bytes.size() - length_bytes)
        throw Error("checkpoint.damaged-file",
                    cat(path, ": the header of ", length, " bytes is longer than the file of ", bytes.size(), " bytes"),
                    "The file may be incomplete; download it again.");
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + length_bytes, length);
    if (text.empty() || text.front() != '{')
        throw Error("checkpoint.damaged-file", cat(path, ": no safetensors file: the header does not start with '{'"));
    return text;
}

/// Reads one entry of the header into a view; `data` is the file's data section.
class EntryReader {
  public:
    EntryReader(const MappedFile& map, std::size_t data_start)
        : map_(map), data_start_(data_start), data_size_(map.bytes().size() - data_start) {}

    TensorView read(const std::string& name, const Json& entry) const {
        TensorView view;
        view.name = name;
        view.file = &map_;
        if (!entry.is_object()) fail(name, "its entry is no object");
        view.dtype = read_dtype(name, entry);
        const std::size_t elements = read_shape(name, entry, view.shape);
        const auto [begin, end] = read_offsets(name, entry);
        const std::size_t bits = spec::bits_of(view.dtype);
        if (elements > std::numeric_limits<std::size_t>::max() / bits) fail(name, "its size overflows");
        if (elements * bits % 8 != 0)
            fail(name, cat(safetensors_name(view.dtype), " ", shape_text(view.shape), " takes ", elements * bits,
                           " bits, no whole number of bytes"));
        const std::size_t bytes = elements * bits / 8;
        if (end - begin != bytes)
            fail(name, cat("data_offsets [", begin, ", ", end, "] hold ", end - begin, " bytes, but ",
                           safetensors_name(view.dtype), " ", shape_text(view.shape), " takes ", bytes));
        view.file_offset = data_start_ + begin;
        view.data = map_.bytes().subspan(view.file_offset, end - begin);
        return view;
    }

    [[noreturn]] void fail(const std::string& name, const std::string& what) const {
        throw Error("checkpoint.damaged-file", cat(map_.path().string(), ": tensor '", name, "': ", what));
    }

  private:
    const Json& member(const std::string& name, const Json& entry, const char* key) const {
        const auto it = entry.find(key);
        if (it == entry.end()) fail(name, cat("its entry has no ", key));
        return *it;
    }

    spec::DType read_dtype(const std::string& name, const Json& entry) const {
        const Json& value = member(name, entry, "dtype");
        if (!value.is_string()) fail(name, "its dtype is no string");
        const auto type = dtype_from(value.get_ref<const std::string&>());
        if (!type) fail(name, cat("unknown dtype '", value.get_ref<const std::string&>(), "'"));
        return *type;
    }

    std::size_t read_shape(const std::string& name, const Json& entry, std::vector<int64_t>& shape) const {
        const Json& value = member(name, entry, "shape");
        if (!value.is_array()) fail(name, "its shape is no list");
        std::size_t elements = 1;
        bool overflow = false;
        for (const Json& size : value) {
            if (!size.is_number_unsigned() ||
                size.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
                fail(name, cat("its shape holds ", size.dump(), ", which is no size"));
            const auto n = static_cast<std::size_t>(size.get<uint64_t>());
            shape.push_back(static_cast<int64_t>(n));
            overflow = overflow || (n != 0 && elements > std::numeric_limits<std::size_t>::max() / n);
            elements *= n;
        }
        if (overflow) fail(name, cat("the product of its shape ", shape_text(shape), " overflows"));
        return elements;
    }

    std::pair<std::size_t, std::size_t> read_offsets(const std::string& name, const Json& entry) const {
        const Json& value = member(name, entry, "data_offsets");
        if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() || !value[1].is_number_unsigned())
            fail(name, cat("its data_offsets are ", value.dump(), ", not two offsets"));
        const auto begin = value[0].get<uint64_t>();
        const auto end = value[1].get<uint64_t>();
        if (begin > end) fail(name, cat("data_offsets [", begin, ", ", end, "] are reversed"));
        if (end > data_size_)
            fail(name, cat("data_offsets [", begin, ", ", end, "] reach beyond the file's ", data_size_,
                           " bytes of data (the file may be incomplete; download it again)"));
        return {begin, end};
    }

    const MappedFile& map_;
    std::size_t data_start_, data_size_;
};

/// The data section must be covered by the tensors without gap or overlap.
void check_coverage(const std::vector<TensorView>& tensors, std::size_t data_start, const EntryReader& reader,
                    const MappedFile& map) {
    std::vector<const TensorView*> order;
    order.reserve(tensors.size());
    for (const TensorView& tensor : tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
        return std::pair(a->file_offset, a->data.size()) < std::pair(b->file_offset, b->data.size());
    });
    std::size_t next = data_start;
    for (const TensorView* tensor : order) {
        const std::size_t begin = tensor->file_offset - data_start;
        const std::size_t end = begin + tensor->data.size();
        if (tensor->file_offset != next)
            reader.fail(tensor->name, cat("data_offsets [", begin, ", ", end, "] ",
                                          tensor->file_offset < next ? "overlap" : "leave a hole after",
                                          " the tensor before, which ends at ", next - data_start));
        next = tensor->file_offset + tensor->data.size();
    }
    if (next != map.bytes().size())
        throw Error("checkpoint.damaged-file", cat(map.path().string(), ": the tensors end at ", next - data_start,
                                                   ", the file's data at ", map.bytes().size() - data_start));
}

std::map<std::string, std::string> read_metadata(const Json& value, const std::string& path) {
    std::map<std::string, std::string> metadata;
    if (value.is_null()) return metadata;  // the library's readers take it for an absent one
    if (!value.is_object()) throw Error("checkpoint.damaged-file", cat(path, ": __metadata__ is no object"));
    for (const auto& item : value.items()) {
        if (!item.value().is_string())
            throw Error("checkpoint.damaged-file", cat(path, ": __metadata__.", item.key(), " is no string"));
        metadata.emplace(item.key(), item.value().get<std::string>());
    }
    return metadata;
}

}  // namespace

std::string_view safetensors_name(spec::DType type) {
    for (const auto& [text, candidate] : dtype_names)
        if (candidate == type) return text;
    return "?";
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

int64_t TensorView::elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
}

bool TensorView::is_aligned(std::size_t alignment) const {
    return reinterpret_cast<std::uintptr_t>(data.data()) % alignment == 0;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : map_(std::make_unique<MappedFile>(path)) {
    const std::string_view text = header_text(*map_);
    const std::string source = path.string() + ": header";
    const auto header = parse_json<Json>(text, source);
    const std::size_t data_start = length_bytes + text.size();
    const EntryReader reader(*map_, data_start);
    for (const auto& item : header.items()) {
        if (item.key() == "__metadata__") {
            metadata_ = read_metadata(item.value(), path.string());
        } else {
            tensors_.push_back(reader.read(item.key(), item.value()));
        }
    }
    check_coverage(tensors_, data_start, reader, *map_);
    std::ranges::sort(tensors_, {}, &TensorView::name);
}

void SafetensorsFile::replace(const std::function<bool(const std::string& name)>& removed,
                              std::vector<TensorBlob> made) {
    std::erase_if(tensors_, [&](const TensorView& tensor) { return removed(tensor.name); });
    for (TensorBlob& blob : made) {
        made_.push_back(std::move(blob));
        const TensorBlob& kept = made_.back();  // its bytes stay where they are
        tensors_.push_back({kept.decl.name, kept.decl.dtype, kept.decl.shape, kept.data, map_.get(), TensorView::made});
    }
    std::ranges::sort(tensors_, {}, &TensorView::name);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
    const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                     [](const TensorView& tensor, std::string_view key) { return tensor.name < key; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
    const TensorView* const tensor = find(name);
    if (tensor == nullptr)
        throw Error("checkpoint.missing-tensor", cat(path().string(), ": tensor '", name, "' is missing"));
    return *tensor;
}

}  // namespace unsloth::formats
