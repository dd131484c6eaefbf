#include "tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "tokenizer/flat_map.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/log.h"

namespace unsloth {
namespace {

constexpr const char* space = "\u2581";

/// The settings of tokenizer_config.json, and the roles that it or special_tokens_map.json names.
struct Settings {
    bool legacy = false;
    std::optional<bool> add_prefix_space;
    bool add_bos = true, add_eos = false;
    std::optional<std::string> bos, eos;
};

/// Tokens by first mention, as transformers collects them.
class TokenList {
  public:
    void add(const AddedToken& token) {
        if (!token.content.empty() && places_.emplace(token.content, tokens_.size()).second) tokens_.push_back(token);
    }
    void mark_special(const std::string& content) {
        if (AddedToken* token = find(content)) token->special = true;
    }
    std::vector<AddedToken> take() { return std::move(tokens_); }

  private:
    AddedToken* find(const std::string& content) {
        const auto it = places_.find(content);
        return it == places_.end() ? nullptr : &tokens_[it->second];
    }
    std::vector<AddedToken> tokens_;
    std::unordered_map<std::string, std::size_t> places_;  ///< in tokens_, by content
};

AddedToken plain_token(const std::string& content, bool special) {
    AddedToken token;
    token.content = token.normalized_content = content;
    token.special = special;
    return token;
}

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

void read_named_tokens(const JsonReader& root, TokenList& tokens, Settings& settings) {
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
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

void read_config(const JsonReader& root, Settings& settings) {
    if (root.has("tokenizer_class")) {
        const std::string& name = root.at("tokenizer_class").string();
        if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") {
            root.at("tokenizer_class")
                .refuse("LlamaTokenizer beside a tokenizer.model (others need their tokenizer.json)");
        }
    }
    settings.legacy = root.boolean_or("legacy", false);
    if (root.has("add_prefix_space")) settings.add_prefix_space = root.at("add_prefix_space").boolean();
    settings.add_bos = root.boolean_or("add_bos_token", true);
    settings.add_eos = root.boolean_or("add_eos_token", false);
}

template <class Read>
void with_file(const std::filesystem::path& path, Read read) {
    if (!std::filesystem::is_regular_file(path)) return;
    const nlohmann::json document = parse_json_file(path);
    read(JsonReader(document, path.string()));
}

/// Every way to make a piece out of two others is a merge; earlier pieces come first, and of one piece the
/// shortest left part.
void make_merges(const std::string& where, BpeSpec& spec, const StringTable& ids) {
    constexpr std::size_t longest_piece = 4096;  // every split of a piece is looked up: time goes with its square
    for (const auto& [piece, id] : spec.vocab) {
        if (piece.size() > longest_piece)
            throw input_error(
                cat(where, ": expected pieces of at most ", longest_piece, " bytes, found ", piece.size()));
        const std::string_view text = piece;
        for (std::size_t at = unicode::decode(text, 0).size; at < text.size(); at += unicode::decode(text, at).size) {
            const int32_t left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
            if (left >= 0 && right >= 0) spec.merges.push_back({left, right, id});
        }
    }
}

std::optional<std::string> piece_at(const SentencePieceModel& model, int32_t id) {
    if (id < 0) return std::nullopt;
    return model.pieces[static_cast<std::size_t>(id)].text;
}

TokenList read_tokens(const std::filesystem::path& folder, const SentencePieceModel& model, Settings& settings) {
    TokenList tokens;
    const auto config = folder / "tokenizer_config.json";
    with_file(config, [&](const JsonReader& root) { read_added_tokens_decoder(root, tokens); });
    with_file(folder / "added_tokens.json", [&](const JsonReader& root) { read_added_tokens_file(root, tokens); });
    for (const auto& file : {config, folder / "special_tokens_map.json"}) {
        with_file(file, [&](const JsonReader& root) { read_named_tokens(root, tokens, settings); });
    }
    if (!settings.bos) settings.bos = piece_at(model, model.bos_id);
    if (!settings.eos) settings.eos = piece_at(model, model.eos_id);
    for (const SentencePieceModel::Piece& piece : model.pieces) {
        const bool special = piece.type == PieceType::control || piece.type == PieceType::unknown;
        if (special || piece.type == PieceType::user_defined) tokens.add(plain_token(piece.text, special));
    }
    return tokens;
}

int32_t required_id(const TokenizerSpec& spec, const std::optional<std::string>& content,
                    const std::filesystem::path& folder, const char* key) {
    for (const AddedToken& token : spec.added) {
        if (token.content == content) return token.id;
    }
    throw input_error(cat(folder.string(), "/tokenizer_config.json: key ", key,
                          ": expected false, for tokenizer.model names no such token"));
}

}  // namespace

TokenizerSpec read_sentencepiece_tokenizer(const std::filesystem::path& folder) {
    using Prepend = SpaceReplacement::Prepend;
    const auto path = folder / "tokenizer.model";
    const SentencePieceModel model = read_sentencepiece_model(path);
    if (model.has_character_map || model.remove_extra_whitespaces) {
        log::warning(path.string(),
                     ": its normalisation of characters and spaces is not applied, as in transformers' "
                     "LlamaTokenizer");
    }
    Settings settings;
    with_file(folder / "tokenizer_config.json", [&](const JsonReader& root) { read_config(root, settings); });

    TokenizerSpec out;
    for (const SentencePieceModel::Piece& piece : model.pieces)
        out.model.vocab.emplace_back(piece.text, static_cast<int32_t>(out.model.vocab.size()));
    const StringTable ids = index_vocab(out.model.vocab);
    make_merges(path.string(), out.model, ids);
    if (model.unknown_id >= 0) out.model.unknown = model.unknown_id;
    out.model.fuse_unknown = out.model.byte_fallback = true;

    const bool prefix = settings.add_prefix_space.value_or(model.add_dummy_prefix);
    const Prepend prepend = !prefix ? Prepend::never : settings.legacy ? Prepend::always : Prepend::first;
    out.pre_tokenizer.emplace_back(SpaceReplacement{prepend, space});
    std::vector<DecoderStep> decoder = {ReplaceDecoder{{std::nullopt, space}, " "}, ByteFallbackDecoder{},
                                        FuseDecoder{}};
    if (prefix) decoder.emplace_back(StripDecoder{" ", 1, 0});
    out.decoder = Decoder(std::move(decoder), true);

    out.added = read_tokens(folder, model, settings).take();
    auto next = static_cast<int32_t>(out.model.vocab.size());
    for (AddedToken& token : out.added) {
        const int32_t in_vocab = ids.find(token.content);
        token.id = in_vocab >= 0 ? in_vocab : next++;
    }
    if (model.bos_id >= 0) out.bos = model.bos_id;
    if (model.eos_id >= 0) out.eos = model.eos_id;
    if (settings.add_bos) out.prefix_ids = {required_id(out, settings.bos, folder, "add_bos_token")};
    if (settings.add_eos) out.suffix_ids = {required_id(out, settings.eos, folder, "add_eos_token")};
    return out;
}

}  // namespace unsloth
