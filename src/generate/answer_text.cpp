#include "unsloth/generate/answer_text.h"

#include "unsloth/core/error.h"

namespace unsloth::generate {

AnswerText::AnswerText(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& stops,
                       const std::optional<HarmonyTokens>& harmony, std::span<const int32_t> prompt)
    : reader_(IncrementalDetokenizer(tokenizer, stops)) {
    if (!harmony) return;
    HarmonyReader reader(tokenizer, *harmony, stops);
    reader.follow(prompt);
    reader_ = std::move(reader);
}

bool AnswerText::add(int32_t id) {
    return std::visit([id](auto& reader) { return reader.add(id); }, reader_);
}

void AnswerText::finish() {
    std::visit([](auto& reader) { reader.finish(); }, reader_);
}

std::string AnswerText::take() {
    const std::size_t before = text_.size();
    if (const auto* plain = std::get_if<IncrementalDetokenizer>(&reader_)) {
        text_ += plain->text().substr(before, plain->stable_prefix() - before);
        return text_.substr(before);
    }
    for (const HarmonyPiece& piece : std::get<HarmonyReader>(reader_).take()) {
        std::string& to = piece.kind == HarmonyPiece::Kind::analysis ? reasoning_ : text_;
        if (piece.begins && !to.empty()) to += "\n";
        if (piece.begins && piece.kind == HarmonyPiece::Kind::call) to += cat("to=", piece.recipient, " ");
        to += piece.text;
    }
    return text_.substr(before);
}

}  // namespace unsloth::generate
