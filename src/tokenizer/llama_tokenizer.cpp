#include "tokenizer/llama_tokenizer.h"

#include <algorithm>
#include <map>

#include "tokenizer/json_reader.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/log.h"

namespace unsloth::tokenizer {
namespace {

constexpr const char* space = "\u2581";

/// "text" or {"content": "text", "lstrip": …}.
AddedToken read_token(const JsonReader& entry, bool special) {
    if (!entry.value().is_object()) return plain_token(entry.string(), special);
    AddedToken token = plain_token(entry.at("content").string(), entry.boolean("special").value_or(special));
    token.single_word = entry.boolean("single_word").value_or(false);
    token.lstrip = entry.boolean("lstrip").value_or(false);
    token.rstrip = entry.boolean("rstrip").value_or(false);
    token.normalized = entry.boolean("normalized").value_or(false);
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
    entries.require(entries.value().is_object(), "an object of ids and tokens");
    std::map<int32_t, AddedToken> by_id;
    for (const auto& [key, ignored] : entries.value().items())
        by_id[read_id(key, entries[key])] = read_token(entries[key], false);
    for (const auto& [id, token] : by_id) settings.add(token);
}

/// added_tokens.json of older versions: {"token": id}.
void read_added_tokens_file(const JsonReader& root, LlamaSettings& settings) {
    if (root.null()) return;
    root.require(root.value().is_object(), "an object of tokens and ids");
    std::map<int32_t, std::string> by_id;
    for (const auto& [content, ignored] : root.value().items()) by_id[root[content].id()] = content;
    for (const auto& [id, content] : by_id) {
        AddedToken token = plain_token(content, false);
        token.normalized = true;
        settings.add(token);
    }
}

void read_named_tokens(const JsonReader& root, LlamaSettings& settings) {
    for (const std::string_view key : role_keys) {
        if (!root.has(key)) continue;
        const AddedToken token = read_token(root[key], true);
        settings.add(token);
        for (AddedToken& known : settings.tokens) known.special |= known.content == token.content;
        if (key == "bos_token" && !settings.bos) settings.bos = token.content;
        if (key == "eos_token" && !settings.eos) settings.eos = token.content;
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
        if (!root.has(key) || !root[key].value().is_array()) continue;
        for (const JsonReader& token : root[key].elements()) settings.add(read_token(token, true));
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
        throw Error("tokenizer.bad-file", cat(folder.string(), "/tokenizer_config.json: key ", key,
                                              ": expected false, for no such token is named"));
    ids = {found->id};
}

// --- tokenizer.model without a tokenizer.json

/// Every way to make a piece out of two others is a merge. Earlier pieces come first; within a piece the shortest
/// left part comes first.
void make_merges(const std::string& where, BpeSpec& spec) {
    constexpr std::size_t longest_piece = 4096;  // every split of a piece is looked up: time grows with its square
    for (const auto& [piece, id] : spec.vocab) {
        if (piece.size() > longest_piece)
            throw Error("tokenizer.bad-file",
                        cat(where, ": expected pieces of at most ", longest_piece, " bytes, found ", piece.size()));
        const std::string_view text = piece;
        for (std::size_t at = unicode::decode(text, 0).size; at < text.size(); at += unicode::decode(text, at).size) {
            const int32_t left = spec.ids.find(text.substr(0, at)), right = spec.ids.find(text.substr(at));
            if (left >= 0 && right >= 0) spec.merges.push_back({left, right, id});
        }
    }
}

std::optional<std::string> piece_at(const SentencePieceModel& model, int32_t id) {
    if (id < 0) return std::nullopt;
    return model.pieces[static_cast<std::size_t>(id)].text;
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
    const JsonFile config(folder / "tokenizer_config.json"), map(folder / "special_tokens_map.json"),
        added(folder / "added_tokens.json");
    const JsonReader root = config.root();
    LlamaSettings settings;
    settings.tokenizer_class = root.string("tokenizer_class").value_or("");
    settings.legacy = root.boolean("legacy").value_or(false);
    settings.add_prefix_space = root.boolean("add_prefix_space");
    settings.add_bos = root.boolean("add_bos_token");
    settings.add_eos = root.boolean("add_eos_token");
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

TokenizerSpec read_sentencepiece_tokenizer(const std::filesystem::path& folder) {
    const auto path = folder / "tokenizer.model";
    const SentencePieceModel model = read_sentencepiece_model(path);
    if (model.has_character_map || model.remove_extra_whitespaces) {
        log::warning(path.string(),
                     ": its normalisation of characters and spaces is not applied, as in transformers' "
                     "LlamaTokenizer");
    }
    LlamaSettings settings = read_llama_settings(folder);
    const std::string& name = settings.tokenizer_class;
    if (!name.empty() && name != "LlamaTokenizer" && name != "LlamaTokenizerFast")
        throw Error("tokenizer.unsupported",
                    cat(folder.string(),
                        "/tokenizer_config.json: key tokenizer_class: expected LlamaTokenizer "
                        "together with a tokenizer.model (others need their tokenizer.json), found \"",
                        name, "\""));

    TokenizerSpec out;
    for (const SentencePieceModel::Piece& piece : model.pieces)
        out.model.vocab.emplace_back(piece.text, static_cast<int32_t>(out.model.vocab.size()));
    out.model.index();
    make_merges(path.string(), out.model);
    if (model.unknown_id >= 0) out.model.unknown = model.unknown_id;

    for (const SentencePieceModel::Piece& piece : model.pieces) {
        const bool special = piece.kind == spec::TokenKind::control || piece.kind == spec::TokenKind::unknown;
        if (special || piece.kind == spec::TokenKind::user_defined) settings.add(plain_token(piece.text, special));
    }
    if (model.bos_id >= 0) out.bos = model.bos_id;
    if (model.eos_id >= 0) out.eos = model.eos_id;
    if (!settings.bos) settings.bos = piece_at(model, model.bos_id);
    if (!settings.eos) settings.eos = piece_at(model, model.eos_id);
    settings.add_bos = settings.add_bos.value_or(true);
    make_llama_pipeline(folder, settings, model.add_dummy_prefix, out);
    return out;
}

}  // namespace unsloth::tokenizer
