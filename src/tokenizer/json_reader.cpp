#include "tokenizer/json_reader.h"

#include <algorithm>

#include "unsloth/core/files.h"

namespace unsloth {

nlohmann::json parse_json_file(const std::filesystem::path& path) {
    const std::string text = read_file(path);
    try {
        return nlohmann::json::parse(text);
    } catch (const nlohmann::json::parse_error& error) {
        const std::size_t at = std::min(text.size(), error.byte == 0 ? 0 : error.byte - 1);
        const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        throw input_error(
            cat(path.string(), ":", line, ": not valid JSON at byte ", at, " of ", text.size()));
    }
}

}  // namespace unsloth
