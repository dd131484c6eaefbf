// Where the images of a row are: values of rows, files, and their bytes.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

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
/// A hash of the file's bytes. Errors as size_of().
std::string hash_of(const ImageSource& source);
/// Decodes it. Input Errors as size_of(), and where the path has become a link that leads elsewhere.
images::Image decode(const ImageSource& source);
/// Its path, or "an image in the row".
std::string name_of(const ImageSource& source);

}  // namespace unsloth::data
