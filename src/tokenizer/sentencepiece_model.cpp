#include "tokenizer/sentencepiece_model.h"

#include <string_view>
#include <unordered_set>

#include "tokenizer/protobuf.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/files.h"

namespace unsloth::tokenizer {
namespace {

constexpr int32_t bpe_model_type = 2;

SentencePieceModel::Piece read_piece(ProtobufReader message) {
    SentencePieceModel::Piece piece;
    while (message.next()) {
        switch (message.field()) {
            case 1:
                piece.text = message.bytes();
                break;
            case 2:
                piece.score = message.real();
                break;
            case 3: {
                const int32_t type = message.signed_integer();
                if (type < 1 || type > 6) message.fail("a type of piece from 1 to 6");
                piece.type = static_cast<PieceType>(type);
                break;
            }
            default:
                break;
        }
    }
    if (piece.text.empty()) message.fail("the text of a piece");
    if (unicode::valid_prefix(piece.text) != piece.text.size()) message.fail("a piece in UTF-8");
    return piece;
}

void read_trainer_spec(ProtobufReader message, const std::string& where, SentencePieceModel& model) {
    int32_t type = 1;  // the format's default is unigram
    while (message.next()) {
        switch (message.field()) {
            case 3:
                type = message.signed_integer();
                break;
            case 24:
                if (message.boolean()) {
                    throw input_error(
                        cat(where, ": trainer_spec.treat_whitespace_as_suffix: expected false, found true"));
                }
                break;
            case 40:
                model.unknown_id = message.signed_integer();
                break;
            case 41:
                model.bos_id = message.signed_integer();
                break;
            case 42:
                model.eos_id = message.signed_integer();
                break;
            default:
                break;
        }
    }
    if (type != bpe_model_type) {
        static constexpr std::string_view names[] = {"", "unigram", "bpe", "word", "char"};
        throw input_error(cat(where, ": trainer_spec.model_type: expected 2 (bpe), found ", type,
                              type >= 1 && type <= 4 ? cat(" (", names[type], ")") : std::string()));
    }
}

void read_normalizer_spec(ProtobufReader message, const std::string& where, SentencePieceModel& model) {
    while (message.next()) {
        switch (message.field()) {
            case 2:
                model.has_character_map = !message.bytes().empty();
                break;
            case 3:
                model.add_dummy_prefix = message.boolean();
                break;
            case 4:
                model.remove_extra_whitespaces = message.boolean();
                break;
            case 5:
                if (!message.boolean()) {
                    throw input_error(cat(where, ": normalizer_spec.escape_whitespaces: expected true, found false"));
                }
                break;
            default:
                break;
        }
    }
}

void check_pieces(const std::string& where, SentencePieceModel& model) {
    std::unordered_set<std::string_view> seen;
    const auto count = static_cast<int32_t>(model.pieces.size());
    for (const SentencePieceModel::Piece& piece : model.pieces) {
        if (!seen.insert(piece.text).second)
            throw input_error(cat(where, ": the piece '", piece.text, "' is there twice"));
    }
    for (const int32_t id : {model.unknown_id, model.bos_id, model.eos_id}) {
        if (id >= count) throw input_error(cat(where, ": trainer_spec names the id ", id, " of ", count, " pieces"));
    }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path) {
    const std::string file = read_file(path);
    const std::string where = path.string();
    SentencePieceModel model;
    bool trainer_spec = false;
    std::string reason = "no pieces";
    try {
        ProtobufReader message(file, where);
        while (message.next()) {
            switch (message.field()) {
                case 1:
                    model.pieces.push_back(read_piece(message.message()));
                    break;
                case 2:
                    read_trainer_spec(message.message(), where, model), trainer_spec = true;
                    break;
                case 3:
                    read_normalizer_spec(message.message(), where, model);
                    break;
                default:
                    break;
            }
        }
    } catch (const Error& error) {
        if (!model.pieces.empty()) throw;
        reason = error.what();
    }
    if (model.pieces.empty()) {
        // Llama 3's own tokenizer.model, for one, is a text of base64 words.
        throw input_error(cat(where, ": not a SentencePiece model (", reason, ")"),
                          "Put the tokenizer.json of the same model beside it.");
    }
    if (!trainer_spec) throw input_error(cat(where, ": a SentencePiece model without trainer_spec"));
    check_pieces(where, model);
    return model;
}

}  // namespace unsloth::tokenizer
