#include "tokenizer/llama_tokenizer.h"

#include <algorithm>
#include <map>

#include "tokenizer/json_reader.h"

namespace unsloth::tokenizer {
namespace {

constexpr const char* space = "\u2581";

/// "text" or {"content": "text", "lstrip": …}.
AddedToken read_token(const JsonReader& entry, bool special) {
    if (!entry.value().is_object()) return plain_token(entry.string(), special);
    AddedToken token = plain_token(entry.at("content").string(), entry.boolean_or("special", special));
    token.single_word = entry.boolean_or("single_word", false);
    token.lstrip = entry.boolean_or("lstrip", false);
    token.rstrip = entry.boolean_or("rstrip", false);
    token.normalized = entry.boolean_or("normalized", false);
    return token;
}

int32_t read_id(const std::string& text, const JsonReader& entry) {
    int32_t id = 0;
    for (const char c : text) {
        if (c < '0' || c > '9' || id > 100'000'000) entry.refuse("an entry whose key is a token id");
        id = id * 10 + (c - '0');
    }
    return id;
}

/// added_tokens_decoder, by id.
void read_added_tokens_decoder(const JsonReader& entries, LlamaSettings& settings) {
    if (!entries.value().is_object()) entries.refuse("an object of ids and tokens");
    std::map<int32_t, AddedToken> by_id;
    for (const auto& [key, value] : entries.value().items()) {
        const JsonReader entry(value, cat(entries.where(), "['", key, "']"));
        by_id[read_id(key, entry)] = read_token(entry, false);
    }
    for (const auto& [id, token] : by_id) settings.add(token);
}

/// added_tokens.json of older versions: {"token": id}.
void read_added_tokens_file(const JsonReader& root, LlamaSettings& settings) {
    if (root.null()) return;
    if (!root.value().is_object()) root.refuse("an object of tokens and ids");
    std::map<int32_t, std::string> by_id;
    for (const auto& [content, value] : root.value().items()) {
        by_id[JsonReader(value, cat(root.where(), ": key '", content, "'")).id()] = content;
    }
    for (const auto& [id, content] : by_id) {
        AddedToken token = plain_token(content, false);
        token.normalized = true;
        settings.add(token);
    }
}

void read_named_tokens(const JsonReader& root, LlamaSettings& settings) {
    for (const std::string_view key : role_keys) {
        if (!root.has(key.data())) continue;
        const AddedToken token = read_token(root.at(key.data()), true);
        settings.add(token);
        for (AddedToken& known : settings.tokens) known.special |= known.content == token.content;
        if (key == "bos_token" && !settings.bos) settings.bos = token.content;
        if (key == "eos_token" && !settings.eos) settings.eos = token.content;
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
        if (!root.has(key) || !root.at(key).value().is_array()) continue;
        const JsonReader list = root.at(key);
        for (std::size_t i = 0; i < list.size(); ++i) settings.add(read_token(list.at(i), true));
    }
}

/// BOS or EOS at one side of a text.
void surround(const std::filesystem::path& folder, const std::optional<bool>& add,
              const std::optional<std::string>& content, const char* key, const std::vector<AddedToken>& tokens,
              std::vector<int32_t>& ids) {
    if (!add) return;
    ids.clear();
    if (!*add) return;
    const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const auto& t) { return t.content == content; });
    if (found == tokens.end())
        throw input_error(
            cat(folder.string(), "/tokenizer_config.json: key ", key, ": expected false, for no such token is named"));
    ids = {found->id};
}

}  // namespace

AddedToken plain_token(const std::string& content, bool special) {
    AddedToken token;
    token.content = token.normalized_content = content;
    token.special = special;
    return token;
}

LlamaSettings read_llama_settings(const std::filesystem::path& folder,
                                  const std::vector<AddedToken>& of_tokenizer_json) {
    const OptionalJsonFile config(folder / "tokenizer_config.json"), map(folder / "special_tokens_map.json"),
        added(folder / "added_tokens.json");
    const JsonReader root = config.root();
    LlamaSettings settings;
    if (root.has("tokenizer_class")) settings.tokenizer_class = root.at("tokenizer_class").string();
    settings.legacy = root.boolean_or("legacy", false);
    if (root.has("add_prefix_space")) settings.add_prefix_space = root.at("add_prefix_space").boolean();
    if (root.has("add_bos_token")) settings.add_bos = root.at("add_bos_token").boolean();
    if (root.has("add_eos_token")) settings.add_eos = root.at("add_eos_token").boolean();
    if (root.has("added_tokens_decoder")) {
        read_added_tokens_decoder(root.at("added_tokens_decoder"), settings);
    } else {
        for (const AddedToken& token : of_tokenizer_json) settings.add(token);
    }
    read_added_tokens_file(added.root(), settings);
    read_named_tokens(root, settings);
    read_named_tokens(map.root(), settings);
    return settings;
}

void make_llama_pipeline(const std::filesystem::path& folder, const LlamaSettings& settings, bool prefix,
                         TokenizerSpec& spec) {
    using Prepend = SpaceReplacement::Prepend;
    spec.model.fuse_unknown = spec.model.byte_fallback = true;
    prefix = settings.add_prefix_space.value_or(prefix);
    const Prepend prepend = !prefix ? Prepend::never : settings.legacy ? Prepend::always : Prepend::first;
    spec.normalizer.clear();
    spec.pre_tokenizer = {SpaceReplacement{prepend, space}};
    spec.decoder = {{ReplaceDecoder{{std::nullopt, space}, " "}, ByteFallbackDecoder{}, FuseDecoder{}}, true};
    if (prefix) spec.decoder.steps.emplace_back(StripDecoder{" ", 1, 0});
    auto next = static_cast<int32_t>(spec.model.vocab.size());
    spec.added = settings.tokens;
    for (AddedToken& token : spec.added) {
        const int32_t in_vocab = spec.model.ids.find(token.content);
        token.id = in_vocab >= 0 ? in_vocab : next++;
    }
    surround(folder, settings.add_bos, settings.bos, "add_bos_token", spec.added, spec.prefix_ids);
    surround(folder, settings.add_eos, settings.eos, "add_eos_token", spec.added, spec.suffix_ids);
}

}  // namespace unsloth::tokenizer
