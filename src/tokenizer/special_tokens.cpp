#include "tokenizer/special_tokens.h"

#include <algorithm>

#include "tokenizer/json_reader.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"

namespace unsloth {
namespace {

using IdOf = std::function<std::optional<int32_t>(std::string_view)>;

/// The content of "KEY": "text" or "KEY": {"content": "text"}.
std::optional<std::string> token_text(const JsonReader& root, const char* key) {
    if (!root.has(key)) return std::nullopt;
    const JsonReader entry = root.at(key);
    return entry.value().is_object() ? entry.at("content").string() : entry.string();
}

void read_role(const JsonReader& root, const char* key, const IdOf& id_of, std::optional<int32_t>& role) {
    const std::optional<std::string> text = token_text(root, key);
    if (role || !text || text->empty()) return;
    role = id_of(*text);
    if (!role)
        log::warning(root.at(key).where(), ": '", *text, "' is not in the vocabulary of tokenizer.json");
}

/// An id or a list of ids under `eos_token_id`.
std::vector<int32_t> read_end_ids(const JsonReader& root) {
    std::vector<int32_t> ids;
    if (!root.has("eos_token_id")) return ids;
    const JsonReader entry = root.at("eos_token_id");
    if (!entry.value().is_array()) return {entry.id()};
    for (std::size_t i = 0; i < entry.size(); ++i) ids.push_back(entry.at(i).id());
    return ids;
}

/// A template, or of several named ones the one called "default".
std::string read_template(const JsonReader& entry) {
    if (!entry.value().is_array()) return entry.string();
    for (std::size_t i = 0; i < entry.size(); ++i) {
        if (entry.at(i).at("name").string() == "default") return entry.at(i).at("template").string();
    }
    entry.refuse("a template with the name default");
}

template <class Read>
void with_file(const std::filesystem::path& path, Read read) {
    if (!std::filesystem::is_regular_file(path)) return;
    const nlohmann::json document = parse_json_file(path);
    read(JsonReader(document, path.string()));
}

}  // namespace

SpecialTokens read_special_tokens(const std::filesystem::path& folder, const IdOf& id_of) {
    SpecialTokens out;
    with_file(folder / "tokenizer_config.json", [&](const JsonReader& root) {
        read_role(root, "bos_token", id_of, out.bos);
        read_role(root, "eos_token", id_of, out.eos);
        if (root.has("chat_template")) out.chat_template = read_template(root.at("chat_template"));
    });
    with_file(folder / "special_tokens_map.json", [&](const JsonReader& root) {
        read_role(root, "bos_token", id_of, out.bos);
        read_role(root, "eos_token", id_of, out.eos);
    });
    std::vector<int32_t> ends;
    with_file(folder / "generation_config.json", [&](const JsonReader& root) { ends = read_end_ids(root); });
    if (!out.eos && ends.empty()) {
        with_file(folder / "config.json", [&](const JsonReader& root) { ends = read_end_ids(root); });
    }
    if (!out.eos && !ends.empty()) out.eos = ends.front();
    if (out.eos) ends.insert(ends.begin(), *out.eos);
    for (const int32_t id : ends) {
        if (std::find(out.stop.begin(), out.stop.end(), id) == out.stop.end()) out.stop.push_back(id);
    }
    if (std::filesystem::is_regular_file(folder / "chat_template.jinja")) {
        out.chat_template = read_file(folder / "chat_template.jinja");
    }
    return out;
}

}  // namespace unsloth
