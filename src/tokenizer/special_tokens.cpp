#include "tokenizer/special_tokens.h"

#include <algorithm>

#include "tokenizer/json_reader.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"

namespace unsloth::tokenizer {
namespace {

using IdOf = std::function<std::optional<int32_t>(std::string_view)>;

/// The content of "KEY": "text" or "KEY": {"content": "text"}.
std::optional<std::string> token_text(const JsonReader& root, std::string_view key) {
    if (!root.has(key)) return std::nullopt;
    return root[key].value().is_object() ? root[key].at("content").string() : root[key].string();
}

/// An id or a list of ids under `eos_token_id`.
std::vector<int32_t> read_end_ids(const JsonReader& root) {
    std::vector<int32_t> ids;
    if (!root.has("eos_token_id")) return ids;
    const JsonReader entry = root["eos_token_id"];
    if (!entry.value().is_array()) return {entry.id()};
    for (const JsonReader& id : entry.elements()) ids.push_back(id.id());
    return ids;
}

using Named = std::vector<std::pair<std::string, std::string>>;

void set(Named& all, const std::string& name, const std::string& text) {
    const auto found = std::ranges::find(all, name, &Named::value_type::first);
    if (found == all.end()) {
        all.emplace_back(name, text);
    } else {
        found->second = text;
    }
}

/// One template, or a list of named ones.
void read_templates(const JsonReader& entry, Named& out) {
    if (!entry.value().is_array()) return set(out, "default", entry.string());
    for (const JsonReader& one : entry.elements()) set(out, one.at("name").string(), one.at("template").string());
}

/// chat_template.jinja and additional_chat_templates/NAME.jinja win over tokenizer_config.json.
void read_template_files(const std::filesystem::path& folder, Named& out) {
    if (std::filesystem::is_regular_file(folder / "chat_template.jinja")) {
        set(out, "default", read_file(folder / "chat_template.jinja"));
    }
    for (const auto& file : additional_templates(folder)) set(out, file.stem().string(), read_file(file));
}

/// The named special tokens that a template can use, and the ids of two of them; those of the first file win.
void read_names(const JsonReader& root, const IdOf& id_of, SpecialTokens& out) {
    for (const std::string_view name : role_keys) {
        const bool known = std::ranges::find(out.texts, name, &Named::value_type::first) != out.texts.end();
        const std::optional<std::string> text = token_text(root, name);
        if (known || !text) continue;
        out.texts.emplace_back(name, *text);
        if (text->empty() || (name != "bos_token" && name != "eos_token")) continue;
        std::optional<int32_t>& role = name == "bos_token" ? out.bos : out.eos;
        role = id_of(*text);
        if (!role) log::warning(root[name].where(), ": '", *text, "' is not in the vocabulary of tokenizer.json");
    }
}

}  // namespace

std::vector<std::filesystem::path> additional_templates(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> files;
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "additional_chat_templates", absent))
        if (entry.is_regular_file() && entry.path().extension() == ".jinja") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

SpecialTokens read_special_tokens(const std::filesystem::path& folder, const IdOf& id_of) {
    SpecialTokens out;
    const JsonFile config(folder / "tokenizer_config.json"), map(folder / "special_tokens_map.json");
    for (const JsonFile* file : {&config, &map}) read_names(file->root(), id_of, out);
    if (config.root().has("chat_template")) read_templates(config.root()["chat_template"], out.chat_templates);
    read_template_files(folder, out.chat_templates);
    std::vector<int32_t> ends = read_end_ids(JsonFile(folder / "generation_config.json").root());
    if (!out.eos && ends.empty()) ends = read_end_ids(JsonFile(folder / "config.json").root());
    if (!out.eos && !ends.empty()) out.eos = ends.front();
    if (out.eos) ends.insert(ends.begin(), *out.eos);
    for (const int32_t id : ends)
        if (std::ranges::find(out.stop, id) == out.stop.end()) out.stop.push_back(id);
    return out;
}

}  // namespace unsloth::tokenizer
