// Where the images of a row are: values of rows, files, and their bytes.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "unsloth/core/files.h"
#include "unsloth/data/batch.h"
#include "unsloth/images/image.h"

namespace unsloth::data {

/// What a row says of an image: the path of a file below `root`, a data: URL, or an object with one of image,
/// image_url, url, path, base64 and bytes (as datasets has it: {bytes, path}, of which bytes come first). `where` names
/// the place. BadRow image.remote for URLs of the network, image.outside-root for a path that leads out of the root
/// (also by a link), image.damaged for a text that is no base64, disk.cannot-read for a missing file.
ImageSource image_source(const nlohmann::ordered_json& value, const std::filesystem::path& root,
                         const std::string& where);

/// The size of an image, from its header. Input Errors of images::read_size() and of files, which name the source.
images::Size size_of(const ImageSource& source);
/// The file of an image, opened once. Input Errors as size_of(), and where the path has become a link that leads
/// elsewhere.
class ImageFile {
  public:
    /// `source` must live as long.
    explicit ImageFile(const ImageSource& source);
    /// A hash of its bytes.
    std::string hash() const;
    images::Image decode() const;

  private:
    std::span<const std::byte> bytes() const;

    const ImageSource& source_;
    MappedFile file_;
};
/// Its path, or "an image in the row".
std::string name_of(const ImageSource& source);

}  // namespace unsloth::data
