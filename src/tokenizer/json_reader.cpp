#include "tokenizer/json_reader.h"

#include <algorithm>

#include "unsloth/core/files.h"

namespace unsloth::tokenizer {

nlohmann::json parse_json_file(const std::filesystem::path& path) {
    const std::string text = read_file(path);
    try {
        return nlohmann::json::parse(text);
    } catch (const nlohmann::json::parse_error& error) {
        const std::size_t at = std::min(text.size(), error.byte == 0 ? 0 : error.byte - 1);
        const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        throw input_error(cat(path.string(), ":", line, ": not valid JSON at byte ", at, " of ", text.size()));
    } catch (const nlohmann::json::exception& error) {  // a number that no double holds
        throw input_error(cat(path.string(), ": not valid JSON: ", error.what()));
    }
}

nlohmann::json parse_json_line(std::string_view line, const std::string& where) {
    try {
        return nlohmann::json::parse(line);
    } catch (const nlohmann::json::parse_error& error) {
        throw input_error(cat(where, ": not valid JSON at byte ", error.byte));
    } catch (const nlohmann::json::exception& error) {  // a number that no double holds
        throw input_error(cat(where, ": not valid JSON: ", error.what()));
    }
}

}  // namespace unsloth::tokenizer
