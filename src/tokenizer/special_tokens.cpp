#include "tokenizer/special_tokens.h"

#include <algorithm>

#include "tokenizer/json_reader.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"

namespace unsloth::tokenizer {
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
    if (!role) log::warning(root.at(key).where(), ": '", *text, "' is not in the vocabulary of tokenizer.json");
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

using Named = std::vector<std::pair<std::string, std::string>>;

void set(Named& all, const std::string& name, const std::string& text) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
    if (found == all.end()) {
        all.emplace_back(name, text);
    } else {
        found->second = text;
    }
}

/// One template, or a list of named ones.
void read_templates(const JsonReader& entry, Named& out) {
    if (!entry.value().is_array()) return set(out, "default", entry.string());
    for (std::size_t i = 0; i < entry.size(); ++i) {
        set(out, entry.at(i).at("name").string(), entry.at(i).at("template").string());
    }
}

/// chat_template.jinja and additional_chat_templates/NAME.jinja win over tokenizer_config.json.
void read_template_files(const std::filesystem::path& folder, Named& out) {
    if (std::filesystem::is_regular_file(folder / "chat_template.jinja")) {
        set(out, "default", read_file(folder / "chat_template.jinja"));
    }
    if (!std::filesystem::is_directory(folder / "additional_chat_templates")) return;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "additional_chat_templates")) {
        if (entry.path().extension() == ".jinja" && entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) set(out, file.stem().string(), read_file(file));
}

/// The named special tokens that a template can use; those of tokenizer_config.json win.
void read_texts(const JsonReader& root, Named& out) {
    for (const char* name : role_keys) {
        const bool known = std::any_of(out.begin(), out.end(), [&](const auto& entry) { return entry.first == name; });
        const std::optional<std::string> text = token_text(root, name);
        if (!known && text) out.emplace_back(name, *text);
    }
}

}  // namespace

SpecialTokens read_special_tokens(const std::filesystem::path& folder, const IdOf& id_of) {
    SpecialTokens out;
    with_json_file(folder / "tokenizer_config.json", [&](const JsonReader& root) {
        read_role(root, "bos_token", id_of, out.bos);
        read_role(root, "eos_token", id_of, out.eos);
        read_texts(root, out.texts);
        if (root.has("chat_template")) read_templates(root.at("chat_template"), out.chat_templates);
    });
    with_json_file(folder / "special_tokens_map.json", [&](const JsonReader& root) {
        read_role(root, "bos_token", id_of, out.bos);
        read_role(root, "eos_token", id_of, out.eos);
        read_texts(root, out.texts);
    });
    std::vector<int32_t> ends;
    with_json_file(folder / "generation_config.json", [&](const JsonReader& root) { ends = read_end_ids(root); });
    if (!out.eos && ends.empty()) {
        with_json_file(folder / "config.json", [&](const JsonReader& root) { ends = read_end_ids(root); });
    }
    if (!out.eos && !ends.empty()) out.eos = ends.front();
    if (out.eos) ends.insert(ends.begin(), *out.eos);
    for (const int32_t id : ends) {
        if (std::find(out.stop.begin(), out.stop.end(), id) == out.stop.end()) out.stop.push_back(id);
    }
    read_template_files(folder, out.chat_templates);
    return out;
}

}  // namespace unsloth::tokenizer
