#include "data/image_source.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "data/columns.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The bytes of a base64 text; white space and missing padding are ignored.
std::optional<std::string> from_base64(std::string_view text) {
    static const std::array<int8_t, 256> values = [] {
        std::array<int8_t, 256> table;
        table.fill(-1);
        constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for (std::size_t i = 0; i < digits.size(); ++i)
            table[static_cast<unsigned char>(digits[i])] = static_cast<int8_t>(i);
        table['-'] = 62;  // of URLs
        table['_'] = 63;
        return table;
    }();
    std::string bytes;
    bytes.reserve(text.size() / 4 * 3);
    uint32_t held = 0;
    int bits = 0;
    bool ended = false;
    for (const char c : text) {
        if (c == '\n' || c == '\r' || c == ' ' || c == '\t') continue;
        if (c == '=') {
            ended = true;
            continue;
        }
        const int value = values[static_cast<unsigned char>(c)];
        if (value < 0 || ended) return std::nullopt;
        held = held << 6 | static_cast<uint32_t>(value);
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        bytes += static_cast<char>(held >> bits & 255);
    }
    return bytes;
}

ImageSource inlined(std::string_view base64, const std::string& where) {
    constexpr int64_t most_text = images::max_file_bytes / 3 * 4 + 1024;
    if (static_cast<int64_t>(base64.size()) > most_text)
        throw BadRow{"image.too-large", cat(where, ": the image has more than ", images::max_file_bytes, " bytes"), ""};
    auto bytes = from_base64(base64);
    if (!bytes) throw BadRow{"image.damaged", cat(where, ": the image is no base64 text"), ""};
    return {true, *std::move(bytes)};
}

/// Below the root, links resolved. Both are what the system makes of them, so that no link leads out.
ImageSource file_below(const fs::path& root, const fs::path& name, const std::string& where) {
    std::error_code failure;
    const fs::path folder = fs::canonical(root.empty() ? fs::path(".") : root, failure);
    if (failure)
        throw BadRow{"disk.cannot-read",
                     cat(where, ": cannot open the images' folder ", root.string(), ": ", failure.message()),
                     "data.image_root names the folder that paths of images are relative to."};
    const fs::path file = fs::canonical(folder / name, failure);
    if (failure)
        throw BadRow{"disk.cannot-read",
                     cat(where, ": cannot open ", (folder / name).string(), ": ", failure.message()),
                     "Paths of images are relative to the file of their row, or to data.image_root."};
    const fs::path below = file.lexically_relative(folder);
    if (below.empty() || *below.begin() == "..")
        throw BadRow{"image.outside-root",
                     cat(where, ": ", name.string(), " leads to ", file.string(), ", outside of ", folder.string()),
                     "Put the image below that folder, or name another in data.image_root."};
    return {false, file.string()};
}

ImageSource text_source(const std::string& text, const fs::path& root, const std::string& where) {
    constexpr std::string_view data = "data:", file = "file://", mark = ";base64,";
    const std::string_view view = text;
    if (view.starts_with(data)) {
        const std::size_t comma = view.find(',');
        if (comma == std::string_view::npos || !view.substr(0, comma + 1).ends_with(mark))
            throw BadRow{"image.damaged", cat(where, ": the data: URL has no base64"), ""};
        return inlined(view.substr(comma + 1), where);
    }
    if (view.starts_with(file)) return file_below(root, view.substr(file.size()), where);
    if (view.find("://") != std::string_view::npos)
        throw BadRow{"image.remote", cat(where, ": the image is a URL: ", text.substr(0, 200)),
                     "Nothing is downloaded for rows: get the images, and name them by their paths."};
    if (view.empty() || view.find('\0') != std::string_view::npos)
        throw BadRow{"data.column-type", cat(where, ": the path of an image is empty"), ""};
    return file_below(root, text, where);
}

/// The first of the members that is there.
const Json* member(const Json& value, std::initializer_list<const char*> names, std::string& where) {
    for (const char* name : names) {
        const auto found = value.find(name);
        if (found == value.end() || found->is_null()) continue;
        where += cat(".", name);
        return &*found;
    }
    return nullptr;
}

/// Runs `read`; what is wrong begins with the image's name.
template <class Read>
auto named(const ImageSource& source, const Read& read) {
    try {
        return read();
    } catch (const Error& error) {
        if (!source.inlined && std::string_view(error.what()).find(source.data) != std::string_view::npos) throw;
        throw Error(error.id(), cat(name_of(source), ": ", error.what()));
    }
}

MappedFile opened(const ImageSource& source) {
    return source.inlined ? MappedFile() : named(source, [&] { return MappedFile(source.data); });
}

std::span<const std::byte> bytes_of(const ImageSource& source, const MappedFile& file) {
    return source.inlined ? std::as_bytes(std::span(source.data.data(), source.data.size())) : file.bytes();
}

}  // namespace

std::string name_of(const ImageSource& source) {
    return source.inlined ? "an image in the row" : source.data;
}

ImageSource image_source(const Json& value, const fs::path& root, const std::string& where) {
    if (value.is_string()) return text_source(value.get_ref<const std::string&>(), root, where);
    std::string place = where;
    if (value.is_object()) {
        if (const Json* bytes = member(value, {"base64"}, place)) return inlined(as_string(*bytes, place), place);
        if (const Json* inner = member(value, {"image", "image_url", "bytes", "path", "url"}, place))
            return image_source(*inner, root, place);
    }
    throw BadRow{"data.column-type",
                 cat(where, ": expected an image (a path, a data: URL, or an object with bytes or a path), found ",
                     shown(value)),
                 ""};
}

images::Size size_of(const ImageSource& source) {
    const MappedFile file = opened(source);
    return named(source, [&] { return images::read_size(bytes_of(source, file)); });
}

ImageFile::ImageFile(const ImageSource& source) : source_(source) {
    std::error_code failure;
    if (!source.inlined && fs::canonical(source.data, failure) != source.data && !failure)
        throw Error("image.outside-root", cat(source.data, ": a part of this path has become a link"));
    file_ = opened(source);
}

std::span<const std::byte> ImageFile::bytes() const {
    return bytes_of(source_, file_);
}

std::string ImageFile::hash() const {
    ContentHash hash;
    hash.add({reinterpret_cast<const char*>(bytes().data()), bytes().size()});
    return hash.hex();
}

images::Image ImageFile::decode() const {
    return named(source_, [&] { return images::decode(bytes()); });
}

}  // namespace unsloth::data
