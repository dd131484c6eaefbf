#include "tokenizer/json_reader.h"

#include "unsloth/core/files.h"

namespace unsloth::tokenizer {

nlohmann::json parse_json(std::string_view text, const std::string& where) {
    try {
        return nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& error) {
        throw input_error(cat(where, ": not valid JSON: ", error.what()));
    }
}

nlohmann::json parse_json_file(const std::filesystem::path& path) {
    return parse_json(read_file(path), path.string());
}

}  // namespace unsloth::tokenizer
