#include "unsloth/data/special_tokens.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/temporary.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json read_settings(const fs::path& file) {
    std::error_code none;
    if (!fs::is_regular_file(file, none)) return Json::object();
    return parse_json<Json>(read_file(file), file.string());
}

/// Text or {"content": text, …}, with another text.
Json with_content(Json token, const std::string& content) {
    if (!token.is_object()) return content;
    token["content"] = content;
    return token;
}

void name_tokens(const fs::path& file, const SpecialTokenNames& tokens) {
    Json settings = read_settings(file);
    for (const auto& [role, content] : tokens) settings[role] = with_content(settings.value(role, Json()), content);
    write_file_atomically(file, settings.dump(2) + "\n");
}

/// A generation ends with the new token, or with what ended it before.
Json ends_with(int32_t id, const Json& before) {
    Json ids = Json::array({id});
    for (const Json& one : before.is_array() ? before : Json::array({before}))
        if (one.is_number_integer() && one != id) ids.push_back(one);
    return ids.size() == 1 ? ids[0] : ids;
}

void name_ids(const fs::path& file, const SpecialTokenNames& tokens, const tokenizer::Tokenizer& tokenizer) {
    Json settings = read_settings(file);
    for (const auto& [role, content] : tokens) {
        if (role == "unk_token") continue;
        const std::string key = role + "_id";
        const int32_t id = *tokenizer.token_id(content);
        settings[key] = role == "eos_token" ? ends_with(id, settings.value(key, Json())) : Json(id);
    }
    write_file_atomically(file, settings.dump(2) + "\n");
}

void require_tokens(const fs::path& folder, const SpecialTokenNames& tokens, const tokenizer::Tokenizer& tokenizer) {
    for (const auto& [role, content] : tokens)
        if (!tokenizer.token_id(content))
            throw Error("option.invalid-value",
                        cat("model.special_tokens: ", role, " '", content, "' is no token of ", folder.string()),
                        "Name a token of its vocabulary. A new one needs new embedding rows: add it with transformers "
                        "(add_tokens, resize_token_embeddings), save that model, and train it with "
                        "lora.modules_to_save embed_tokens and lm_head.");
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
    std::vector<fs::path> files = tokenizer::Tokenizer::files_in(from);
    if (fs::exists(from / "config.json")) files.push_back(from / "config.json");
    for (const fs::path& file : files) {
        const fs::path target = to / file.lexically_relative(from);
        fs::create_directories(target.parent_path());
        fs::copy_file(file, target);
    }
}

}  // namespace

void set_special_ids(spec::ModelSpec& spec, const SpecialTokenNames& tokens, const tokenizer::Tokenizer& tokenizer) {
    for (const auto& [role, content] : tokens) {
        const auto id = tokenizer.token_id(content);
        if (!id) continue;  // refused when the tokenizer was opened
        if (role == "bos_token") spec.bos_token_id = *id;
        if (role == "pad_token") spec.pad_token_id = *id;
        if (role != "eos_token") continue;
        std::erase(spec.eos_token_ids, *id);
        spec.eos_token_ids.insert(spec.eos_token_ids.begin(), *id);
    }
}

fs::path with_special_tokens(const fs::path& folder, const SpecialTokenNames& tokens) {
    using Key = std::pair<fs::path, SpecialTokenNames>;
    static std::mutex mutex;
    static std::map<Key, std::unique_ptr<Temporary>> made;
    const std::lock_guard lock(mutex);
    std::unique_ptr<Temporary>& place = made[{folder, tokens}];
    if (place) return place->path();
    const auto tokenizer = tokenizer::Tokenizer::load(folder);
    require_tokens(folder, tokens, tokenizer);
    auto fresh =
        std::make_unique<Temporary>(fs::temp_directory_path() / "unsloth-train-tokenizer", Temporary::Kind::folder);
    copy_tokenizer(folder, fresh->path());
    name_tokens(fresh->path() / "tokenizer_config.json", tokens);
    if (fs::exists(folder / "special_tokens_map.json")) name_tokens(fresh->path() / "special_tokens_map.json", tokens);
    name_ids(fresh->path() / "generation_config.json", tokens, tokenizer);
    place = std::move(fresh);
    return place->path();
}

}  // namespace unsloth::data
