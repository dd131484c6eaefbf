#include "tokenizer/sentencepiece_model.h"

#include <bit>
#include <string_view>
#include <unordered_set>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/utf8.h"

namespace unsloth::tokenizer {
namespace {

constexpr int32_t bpe_model_type = 2;

/// One message of Protocol Buffers' wire format (protobuf.dev, "Encoding") within a file's bytes, field by field. Input
/// Error that names the file and the byte for what is cut off or malformed.
class ProtoMessage {
  public:
    ProtoMessage(std::string_view bytes, const std::string& where, std::size_t base = 0)
        : bytes_(bytes), where_(where), base_(base) {}

    /// Moves on to the next field and reads its value. False at the end.
    bool next() {
        if (at_ == bytes_.size()) return false;
        const uint64_t tag = varint();
        field_ = tag >> 3;
        type_ = static_cast<unsigned>(tag & 7);
        if (field_ == 0 || field_ > 0x1FFFFFFF) fail("a field number");
        if (type_ != 0 && type_ != 1 && type_ != 2 && type_ != 5) fail("a field of a known wire type");
        if (type_ == 0) number_ = varint();
        if (type_ != 0) value_ = take(type_ == 1 ? 8 : type_ == 5 ? 4 : varint());
        return true;
    }
    uint64_t field() const { return field_; }
    int32_t integer() const {
        expect(0, "an integer");
        return static_cast<int32_t>(number_);
    }
    float real() const {
        expect(5, "a float");
        uint32_t bits = 0;
        for (std::size_t i = 0; i < 4; ++i) bits |= uint32_t{static_cast<uint8_t>(value_[i])} << (8 * i);
        return std::bit_cast<float>(bits);
    }
    std::string_view text() const {
        expect(2, "bytes");
        return value_;
    }
    ProtoMessage message() const { return {text(), where_, base_ + at_ - value_.size()}; }
    /// Input Error that says what was expected at the current byte.
    [[noreturn]] void fail(const char* expected) const {
        throw Error("tokenizer.bad-file", cat(where_, ": byte ", base_ + at_, ": expected ", expected));
    }
    /// Input Error for a key of the file whose value cannot be used.
    [[noreturn]] void refuse(const std::string& reason) const {
        throw Error("tokenizer.bad-file", cat(where_, ": ", reason));
    }

  private:
    void expect(unsigned type, const char* what) const {
        if (type_ != type) fail(what);
    }
    uint64_t varint() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<uint8_t>(take(1)[0]);
            value |= uint64_t{byte & 0x7Fu} << shift;
            if (byte < 0x80) return value;
        }
        fail("an integer of at most ten bytes");
    }
    std::string_view take(uint64_t size) {
        if (size > bytes_.size() - at_) fail("more bytes: the file is cut off or is no such message");
        const std::string_view out = bytes_.substr(at_, size);
        at_ += size;
        return out;
    }

    std::string_view bytes_;
    const std::string& where_;
    std::size_t base_;  ///< the message's place in the file
    std::size_t at_ = 0;
    uint64_t field_ = 0, number_ = 0;
    std::string_view value_;
    unsigned type_ = 0;
};

SentencePieceModel::Piece read_piece(ProtoMessage message) {
    SentencePieceModel::Piece piece;
    while (message.next()) {
        if (message.field() == 1) piece.text = message.text();
        if (message.field() == 2) piece.score = message.real();
        if (message.field() != 3) continue;
        piece.kind = static_cast<spec::TokenKind>(message.integer());
        if (message.integer() < 1 || message.integer() > 6) message.fail("a type of piece from 1 to 6");
    }
    if (piece.text.empty()) message.fail("the text of a piece");
    if (first_invalid_utf8(piece.text) != piece.text.size()) message.fail("a piece in UTF-8");
    return piece;
}

void read_trainer_spec(ProtoMessage message, SentencePieceModel& model) {
    int32_t type = 1;  // the format's default is unigram
    while (message.next()) {
        if (message.field() == 3) type = message.integer();
        if (message.field() == 24 && message.integer())
            message.refuse("trainer_spec.treat_whitespace_as_suffix: expected false, found true");
        if (message.field() == 40) model.unknown_id = message.integer();
        if (message.field() == 41) model.bos_id = message.integer();
        if (message.field() == 42) model.eos_id = message.integer();
    }
    if (type == bpe_model_type) return;
    static constexpr std::string_view names[] = {"", "unigram", "bpe", "word", "char"};
    message.refuse(cat("trainer_spec.model_type: expected 2 (bpe), found ", type,
                       type >= 1 && type <= 4 ? cat(" (", names[type], ")") : std::string()));
}

void read_normalizer_spec(ProtoMessage message, SentencePieceModel& model) {
    while (message.next()) {
        if (message.field() == 2) model.has_character_map = !message.text().empty();
        if (message.field() == 3) model.add_dummy_prefix = message.integer();
        if (message.field() == 4) model.remove_extra_whitespaces = message.integer();
        if (message.field() == 5 && !message.integer())
            message.refuse("normalizer_spec.escape_whitespaces: expected true, found false");
    }
}

void check_pieces(const std::string& where, SentencePieceModel& model) {
    std::unordered_set<std::string_view> seen;
    const auto count = static_cast<int32_t>(model.pieces.size());
    for (const SentencePieceModel::Piece& piece : model.pieces) {
        if (!seen.insert(piece.text).second)
            throw Error("tokenizer.bad-file", cat(where, ": the piece '", piece.text, "' is there twice"));
    }
    for (const int32_t id : {model.unknown_id, model.bos_id, model.eos_id}) {
        if (id >= count)
            throw Error("tokenizer.bad-file", cat(where, ": trainer_spec names the id ", id, " of ", count, " pieces"));
    }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path) {
    const std::string file = read_file(path), where = path.string();
    SentencePieceModel model;
    bool trainer_spec = false;
    std::string reason = "no pieces";
    try {
        ProtoMessage message(file, where);
        while (message.next()) {
            if (message.field() == 1) model.pieces.push_back(read_piece(message.message()));
            if (message.field() == 2) read_trainer_spec(message.message(), model), trainer_spec = true;
            if (message.field() == 3) read_normalizer_spec(message.message(), model);
        }
    } catch (const Error& error) {
        if (!model.pieces.empty()) throw;
        reason = error.what();
    }
    if (model.pieces.empty()) {
        // Llama 3's own tokenizer.model, for one, is a text of base64 words.
        throw Error("tokenizer.bad-file", cat(where, ": not a SentencePiece model (", reason, ")"),
                    "Put the tokenizer.json of the same model next to it.");
    }
    if (!trainer_spec) throw Error("tokenizer.bad-file", cat(where, ": a SentencePiece model without trainer_spec"));
    check_pieces(where, model);
    return model;
}

}  // namespace unsloth::tokenizer
