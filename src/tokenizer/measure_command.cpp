#include "unsloth/tokenizer/measure_command.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace unsloth::tokenizer {
namespace {

std::vector<std::string> read_texts(std::istream& in) {
    std::vector<std::string> texts;
    std::string line;
    for (std::size_t number = 1; std::getline(in, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = cat("line ", number);
        const auto row = parse_json_line(line, where);
        texts.push_back(JsonReader(row, where).at("text").string());
    }
    return texts;
}

}  // namespace

void measure_encoding(const Tokenizer& tokenizer, bool add_special, int rounds, std::istream& in, std::ostream& out) {
    const std::vector<std::string> texts = read_texts(in);
    std::size_t bytes = 0, tokens = 0;
    for (const std::string& text : texts) bytes += text.size();
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        tokens = 0;
        for (const std::string& text : texts) tokens += tokenizer.encode(text, add_special).size();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    nlohmann::ordered_json result;
    result["rows"] = texts.size();
    result["bytes"] = bytes;
    result["tokens"] = tokens;
    result["seconds"] = seconds;
    out << result.dump() << '\n';
}

}  // namespace unsloth::tokenizer
