#include "tokenizer/llama_tokenizer.h"

#include <map>

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
void read_added_tokens_decoder(const JsonReader& root, TokenList& tokens) {
    if (!root.has("added_tokens_decoder")) return;
    const JsonReader entries = root.at("added_tokens_decoder");
    if (!entries.value().is_object()) entries.refuse("an object of ids and tokens");
    std::map<int32_t, AddedToken> by_id;
    for (const auto& [key, value] : entries.value().items()) {
        const JsonReader entry(value, cat(entries.where(), "['", key, "']"));
        by_id[read_id(key, entry)] = read_token(entry, false);
    }
    for (const auto& [id, token] : by_id) tokens.add(token);
}

/// added_tokens.json of older versions: {"token": id}.
void read_added_tokens_file(const JsonReader& root, TokenList& tokens) {
    if (!root.value().is_object()) root.refuse("an object of tokens and ids");
    std::map<int32_t, std::string> by_id;
    for (const auto& [content, value] : root.value().items()) {
        by_id[JsonReader(value, cat(root.where(), ": key '", content, "'")).id()] = content;
    }
    for (const auto& [id, content] : by_id) {
        AddedToken token = plain_token(content, false);
        token.normalized = true;
        tokens.add(token);
    }
}

void read_named_tokens(const JsonReader& root, TokenList& tokens, LlamaSettings& settings) {
    for (const char* key : role_keys) {
        if (!root.has(key)) continue;
        const AddedToken token = read_token(root.at(key), true);
        tokens.add(token);
        tokens.mark_special(token.content);
        if (key == std::string("bos_token") && !settings.bos) settings.bos = token.content;
        if (key == std::string("eos_token") && !settings.eos) settings.eos = token.content;
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
        if (!root.has(key) || !root.at(key).value().is_array()) continue;
        const JsonReader list = root.at(key);
        for (std::size_t i = 0; i < list.size(); ++i) tokens.add(read_token(list.at(i), true));
    }
}

int32_t required_id(const TokenizerSpec& spec, const std::optional<std::string>& content,
                    const std::filesystem::path& folder, const char* key) {
    for (const AddedToken& token : spec.added) {
        if (token.content == content) return token.id;
    }
    throw input_error(
        cat(folder.string(), "/tokenizer_config.json: key ", key, ": expected false, for no such token is named"));
}

}  // namespace

AddedToken plain_token(const std::string& content, bool special) {
    AddedToken token;
    token.content = token.normalized_content = content;
    token.special = special;
    return token;
}

LlamaSettings read_llama_settings(const std::filesystem::path& folder) {
    LlamaSettings settings;
    with_json_file(folder / "tokenizer_config.json", [&](const JsonReader& root) {
        if (root.has("tokenizer_class")) settings.tokenizer_class = root.at("tokenizer_class").string();
        settings.legacy = root.boolean_or("legacy", false);
        const auto read = [&](const char* key, std::optional<bool>& value) {
            if (root.has(key)) value = root.at(key).boolean();
        };
        read("add_prefix_space", settings.add_prefix_space);
        read("add_bos_token", settings.add_bos);
        read("add_eos_token", settings.add_eos);
    });
    return settings;
}

TokenList read_llama_tokens(const std::filesystem::path& folder, const std::vector<AddedToken>& of_tokenizer_json,
                            LlamaSettings& settings) {
    TokenList tokens;
    const auto config = folder / "tokenizer_config.json";
    bool decoder = false;
    with_json_file(config, [&](const JsonReader& root) {
        decoder = root.has("added_tokens_decoder");
        read_added_tokens_decoder(root, tokens);
    });
    if (!decoder)
        for (const AddedToken& token : of_tokenizer_json) tokens.add(token);
    with_json_file(folder / "added_tokens.json", [&](const JsonReader& root) { read_added_tokens_file(root, tokens); });
    for (const auto& file : {config, folder / "special_tokens_map.json"}) {
        with_json_file(file, [&](const JsonReader& root) { read_named_tokens(root, tokens, settings); });
    }
    return tokens;
}

void make_llama_pipeline(const LlamaSettings& settings, bool prefix, std::vector<AddedToken> added,
                         const StringTable& vocab, TokenizerSpec& spec) {
    using Prepend = SpaceReplacement::Prepend;
    spec.model.fuse_unknown = spec.model.byte_fallback = true;
    prefix = settings.add_prefix_space.value_or(prefix);
    const Prepend prepend = !prefix ? Prepend::never : settings.legacy ? Prepend::always : Prepend::first;
    spec.normalizer = Normalizer();
    spec.pre_tokenizer = {SpaceReplacement{prepend, space}};
    std::vector<DecoderStep> decoder = {ReplaceDecoder{{std::nullopt, space}, " "}, ByteFallbackDecoder{},
                                        FuseDecoder{}};
    if (prefix) decoder.emplace_back(StripDecoder{" ", 1, 0});
    spec.decoder = Decoder(std::move(decoder), true);
    auto next = static_cast<int32_t>(spec.model.vocab.size());
    spec.added = std::move(added);
    for (AddedToken& token : spec.added) {
        const int32_t in_vocab = vocab.find(token.content);
        token.id = in_vocab >= 0 ? in_vocab : next++;
    }
}

void surround(const std::filesystem::path& folder, const LlamaSettings& settings, TokenizerSpec& spec) {
    const auto set = [&](const std::optional<bool>& add, const std::optional<std::string>& content, const char* key,
                         std::vector<int32_t>& ids) {
        if (!add) return;
        ids.clear();
        if (*add) ids = {required_id(spec, content, folder, key)};
    };
    set(settings.add_bos, settings.bos, "add_bos_token", spec.prefix_ids);
    set(settings.add_eos, settings.eos, "add_eos_token", spec.suffix_ids);
}

}  // namespace unsloth::tokenizer
