// Tokenizers that come as SentencePiece's tokenizer.model, without a tokenizer.json.
#include <optional>
#include <string>

#include "tokenizer/flat_map.h"
#include "tokenizer/llama_tokenizer.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::tokenizer {
namespace {

/// Every way to make a piece out of two others is a merge; earlier pieces come first, and of one piece the
/// shortest left part.
void make_merges(const std::string& where, BpeSpec& spec) {
    constexpr std::size_t longest_piece = 4096;  // every split of a piece is looked up: time goes with its square
    for (const auto& [piece, id] : spec.vocab) {
        if (piece.size() > longest_piece)
            throw input_error(
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
        throw input_error(cat(folder.string(),
                              "/tokenizer_config.json: key tokenizer_class: expected LlamaTokenizer "
                              "beside a tokenizer.model (others need their tokenizer.json), found \"",
                              name, "\""));

    TokenizerSpec out;
    for (const SentencePieceModel::Piece& piece : model.pieces)
        out.model.vocab.emplace_back(piece.text, static_cast<int32_t>(out.model.vocab.size()));
    out.model.index();
    make_merges(path.string(), out.model);
    if (model.unknown_id >= 0) out.model.unknown = model.unknown_id;

    for (const SentencePieceModel::Piece& piece : model.pieces) {
        const bool special = piece.type == PieceType::control || piece.type == PieceType::unknown;
        if (special || piece.type == PieceType::user_defined) settings.add(plain_token(piece.text, special));
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
