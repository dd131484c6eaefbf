#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "data/words.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/data/reader.h"
#include "unsloth/tokenizer/characters.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* forms =
    "Expected {\"word\": [\"synonym\", ...], ...}, or JSON Lines of {\"word\": \"...\", \"synonyms\": [\"...\", ...]}.";

const Json& strings(const Json& list, const std::string& where) {
    const bool fits =
        list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& entry) { return entry.is_string(); });
    if (!fits)
        throw Error("data.bad-thesaurus", cat(where, ": expected a list of synonyms, found ", shown(list)), forms);
    return list;
}

}  // namespace

void Thesaurus::add(const std::string& word, const std::string& synonym) {
    const std::string key = tokenizer::lowercase(word);
    if (synonym.empty() || tokenizer::lowercase(synonym) == key) return;
    std::vector<std::string>& known = synonyms_[key];
    if (std::find(known.begin(), known.end(), synonym) == known.end()) known.push_back(synonym);
}

Thesaurus Thesaurus::load(const std::filesystem::path& path) {
    Thesaurus thesaurus;
    const auto add_all = [&](const std::string& word, const Json& list, const std::string& where) {
        for (const Json& synonym : strings(list, where)) thesaurus.add(word, synonym.get_ref<const std::string&>());
    };
    // A file of one object is no JSON Lines of {word, synonyms}, unless it is a single such line.
    const Json whole = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    const bool single_line = whole.is_object() && whole.size() == 2 && whole.contains("word") &&
                             whole["word"].is_string() && whole.contains("synonyms");
    if (whole.is_object() && !single_line) {
        for (const auto& [word, list] : whole.items()) add_all(word, list, cat(path.string(), ": \"", word, "\""));
    } else {
        const std::unique_ptr<RowReader> reader = open_rows(path);
        for (RowChunk chunk = reader->next(); !chunk.empty(); chunk = reader->next())
            for (std::size_t i = 0; i < chunk.size(); ++i) {
                const std::string where = reader->place(chunk.row(i).line);
                try {
                    const Json row = reader->parse(chunk.row(i));
                    if (!row.contains("word") || !row.contains("synonyms"))
                        throw BadRow{"data.bad-thesaurus", "expected {\"word\", \"synonyms\"}", ""};
                    add_all(as_string(row["word"], "word"), row["synonyms"], where);
                } catch (const BadRow& bad) {
                    throw Error("data.bad-thesaurus", cat(where, ": ", bad.message), forms);
                }
            }
    }
    if (thesaurus.synonyms_.empty())
        throw Error("data.bad-thesaurus", cat(path.string(), ": no word has a synonym"), forms);
    return thesaurus;
}

}  // namespace unsloth::data
