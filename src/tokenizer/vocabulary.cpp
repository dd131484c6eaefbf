#include "unsloth/tokenizer/vocabulary.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "tokenizer/pipeline.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer_spec.h"
#include "unsloth/core/log.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {
namespace {

constexpr std::string_view space_mark = "\u2581";
/// llama.cpp's converter gives it to tokens that no merge makes.
constexpr float added_score = -1000.0F;

/// Markers of prompts are control tokens even where the file forgets to say so: they are no text to show.
bool looks_like_control(std::string_view token) {
    return token == "<pad>" || token == "<mask>" || (token.starts_with("<|") && token.ends_with("|>")) ||
           (token.starts_with("<unused") && token.ends_with(">"));
}

std::string with_spaces(std::string text) {
    for (std::size_t at = text.find(space_mark); at != std::string::npos; at = text.find(space_mark, at + 1))
        text.replace(at, space_mark.size(), " ");
    return text;
}

void add_added_tokens(const TokenizerSpec& spec, spec::Vocabulary& out) {
    for (const AddedToken& added : spec.added) {
        spec::VocabularyToken& token = out.tokens[static_cast<std::size_t>(added.id)];
        const bool control = added.special || looks_like_control(added.content);
        token.text = control ? added.content : with_spaces(added.content);
        token.kind = control ? spec::TokenKind::control : spec::TokenKind::user_defined;
        if (out.kind == spec::Vocabulary::Kind::sentencepiece) token.score = added_score;
    }
}

void check_unique(const std::filesystem::path& folder, const spec::Vocabulary& vocabulary) {
    std::unordered_set<std::string_view> seen;
    for (const spec::VocabularyToken& token : vocabulary.tokens)
        if (!token.text.empty() && !seen.insert(token.text).second)
            throw Error("export.tokenizer", cat(folder.string(), ": the token '", token.text,
                                                "' is there twice, which llama.cpp cannot load"));
}

// --- byte-level -----------------------------------------------------------------------------------------------------

/// Marks a step that has no pattern of its own.
constexpr std::string_view digits_step = "Digits one by one";

constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Splitting {
    std::string_view name;
    std::vector<std::string_view> steps;
    /// Whether a word that is in the vocabulary is that token whatever the merges give; llama.cpp ties it to the name.
    bool ignore_merges;
};

const std::vector<Splitting>& known_splittings() {
    static const std::vector<Splitting> all = {
        {"llama-bpe", {llama3_pattern}, true}, {"smaug-bpe", {llama3_pattern}, false},
        {"qwen2", {qwen2_pattern}, false},     {"tekken", {tekken_pattern}, true},
        {"gpt-2", {gpt2_pattern}, false},      {"smollm", {digits_step, gpt2_pattern}, false},
    };
    return all;
}

/// Nullopt for a step that no name covers.
std::optional<std::string> text_of(const PreTokenizerStep& step) {
    const auto* split = std::get_if<PatternSplit>(&step);
    if (!split || split->behavior != SplitBehavior::isolated || split->invert) return std::nullopt;
    if (split->pattern.characters == unicode::is_numeric) return std::string(digits_step);
    return split->pattern.regex ? std::optional(split->pattern.regex->source()) : std::nullopt;
}

/// llama.cpp's name for the way in which a byte-level tokenizer, read from `path`, splits texts into words. Input Error
/// that names the key when there is none: llama.cpp would split texts in another way than the model was trained with.
std::string splitting_name(const TokenizerSpec& spec, const std::filesystem::path& path) {
    for (const NormalizerStep& step : spec.normalizer) {
        // Composed characters are what people type, so this alone is let through.
        if (!std::holds_alternative<NfcStep>(step))
            throw Error("export.tokenizer",
                        cat(path.string(),
                            ": key normalizer: llama.cpp does not normalise texts, this tokenizer does: the two "
                            "would give other tokens"));
    }
    std::vector<std::string> steps;
    for (const PreTokenizerStep& step : spec.pre_tokenizer) steps.push_back(text_of(step).value_or(""));
    std::string names;
    for (const Splitting& splitting : known_splittings()) {
        names += cat(names.empty() ? "" : ", ", splitting.name);
        if (std::equal(steps.begin(), steps.end(), splitting.steps.begin(), splitting.steps.end()) &&
            splitting.ignore_merges == spec.model.ignore_merges)
            return std::string(splitting.name);
    }
    throw Error("export.tokenizer",
                cat(path.string(),
                    ": key pre_tokenizer: llama.cpp's name for this way of splitting texts is not known here (known: ",
                    names, ")"),
                "If llama.cpp has one (tokenizer.ggml.pre of a GGUF file of the same model), give it with --pre NAME.");
}

void fill_byte_bpe(const TokenizerSpec& spec, spec::Vocabulary& out) {
    for (const auto& [text, id] : spec.model.vocab)
        out.tokens[static_cast<std::size_t>(id)] = {text, 0, spec::TokenKind::normal};
    const auto text_of = [&](int32_t id) -> const std::string& {
        return out.tokens[static_cast<std::size_t>(id)].text;
    };
    for (const auto& merge : spec.model.merges) {
        const std::string &left = text_of(merge.left), &right = text_of(merge.right);
        if ((left + right).find(' ') != std::string::npos)
            throw Error("export.tokenizer",
                        cat("the merge of '", left, "' and '", right, "' holds a space, which GGUF cannot say"));
        out.merges.push_back(cat(left, " ", right));
    }
}

// --- SentencePiece --------------------------------------------------------------------------------------------------

/// Whether a space goes in front of texts; refuses every other treatment of them.
bool has_space_prefix(const TokenizerSpec& spec, const std::filesystem::path& folder) {
    bool prefix = false, replaces = false, others = false;
    for (const NormalizerStep& step : spec.normalizer) {
        const auto* prepend = std::get_if<PrependStep>(&step);
        const auto* replace = std::get_if<ReplaceStep>(&step);
        const bool marks = replace && replace->pattern.literal == " " && replace->content == space_mark;
        prefix = prefix || (prepend && prepend->text == space_mark);
        replaces = replaces || marks;
        others = others || (!marks && !(prepend && prepend->text == space_mark));
    }
    for (const PreTokenizerStep& step : spec.pre_tokenizer) {
        const auto* metaspace = std::get_if<SpaceReplacement>(&step);
        others = others || prefix || replaces || !metaspace || metaspace->replacement != space_mark;
        if (metaspace) prefix = metaspace->prepend != SpaceReplacement::Prepend::never;
        replaces = true;
    }
    if (!others && replaces) return prefix;
    throw Error("export.tokenizer",
                cat(folder.string(),
                    ": llama.cpp has SentencePiece's way alone (spaces become U+2581, one goes in front of "
                    "the text); this tokenizer does something else (keys normalizer, pre_tokenizer)"));
}

/// The scores of tokenizer.model, if its pieces are those of the vocabulary.
bool take_piece_scores(const std::filesystem::path& folder, spec::Vocabulary& out) {
    const auto path = folder / "tokenizer.model";
    if (!std::filesystem::is_regular_file(path)) return false;
    const SentencePieceModel model = read_sentencepiece_model(path);
    for (std::size_t id = 0; id < model.pieces.size(); ++id) {
        if (id < out.tokens.size() && out.tokens[id].text == model.pieces[id].text) continue;
        log::warning(path.string(), ": its piece ", id, " is another one than tokenizer.json's: not used");
        return false;
    }
    for (std::size_t id = 0; id < model.pieces.size(); ++id) {
        out.tokens[id].score = model.pieces[id].score;
        out.tokens[id].kind = model.pieces[id].kind;
    }
    return true;
}

/// A piece's score falls with the first merge that makes it. Where the merges of one piece are not neighbours, a
/// score cannot say what the ranks do.
void rank_scores(const std::filesystem::path& folder, const TokenizerSpec& spec, spec::Vocabulary& out) {
    std::vector<bool> ranked(out.tokens.size());
    float next = 0;
    int32_t last = -1;
    int64_t apart = 0;
    for (const auto& merge : spec.model.merges) {
        const auto id = static_cast<std::size_t>(merge.merged);
        if (!ranked[id]) out.tokens[id].score = next--;
        apart += ranked[id] && merge.merged != last;
        ranked[id] = true;
        last = merge.merged;
    }
    for (std::size_t id = 0; id < ranked.size(); ++id)
        if (!ranked[id]) out.tokens[id].score = next;
    if (apart > 0)
        log::warning(folder.string(), ": ", apart,
                     " merges have a rank that scores of pieces cannot express; llama.cpp may "
                     "split some words otherwise");
}

void fill_sentencepiece(const std::filesystem::path& folder, const TokenizerSpec& spec, spec::Vocabulary& out) {
    const BpeSpec& model = spec.model;
    if (!model.byte_fallback || model.ignore_merges)
        throw Error("export.tokenizer",
                    cat(folder.string(),
                        ": llama.cpp has byte-level BPE and SentencePiece BPE with byte fallback; this tokenizer "
                        "is neither (model.byte_fallback, ignore_merges)"));
    for (const auto& [text, id] : model.vocab)
        out.tokens[static_cast<std::size_t>(id)] = {text, 0, spec::TokenKind::normal};
    if (!take_piece_scores(folder, out)) {
        rank_scores(folder, spec, out);
        for (const int32_t id : model.fallback_ids())
            if (id >= 0) out.tokens[static_cast<std::size_t>(id)].kind = spec::TokenKind::byte;
        if (model.unknown) out.tokens[static_cast<std::size_t>(*model.unknown)].kind = spec::TokenKind::unknown;
    }
}

}  // namespace

spec::Vocabulary read_vocabulary(const std::filesystem::path& folder, const std::string& pre_tokenizer) {
    const Tokenizer tokenizer = Tokenizer::load(folder);
    const auto json_path = folder / "tokenizer.json";
    const bool is_json = std::filesystem::is_regular_file(json_path);
    const TokenizerSpec spec = is_json ? read_tokenizer_json(json_path) : read_sentencepiece_tokenizer(folder);

    spec::Vocabulary out;
    out.tokens.resize(static_cast<std::size_t>(tokenizer.vocab_size()));
    out.kind = spec.model.reads_bytes ? spec::Vocabulary::Kind::byte_bpe : spec::Vocabulary::Kind::sentencepiece;
    if (spec.model.reads_bytes) {
        out.pre_tokenizer = pre_tokenizer.empty() ? splitting_name(spec, json_path) : pre_tokenizer;
        fill_byte_bpe(spec, out);
    } else {
        fill_sentencepiece(folder, spec, out);
        out.add_space_prefix = has_space_prefix(spec, folder);
    }
    add_added_tokens(spec, out);
    check_unique(folder, out);

    const auto role = [&](std::string_view name) -> std::optional<int32_t> {
        for (const auto& [key, text] : tokenizer.special_token_texts())
            if (key == name) return tokenizer.token_id(text);
        return std::nullopt;
    };
    out.bos = tokenizer.bos_id();
    out.eos = tokenizer.eos_id();
    out.unknown = role("unk_token");
    if (!out.unknown) out.unknown = spec.model.unknown;
    out.separator = role("sep_token");
    out.padding = role("pad_token");
    out.classification = role("cls_token");
    out.mask = role("mask_token");
    out.add_bos = tokenizer.adds_bos();
    out.add_eos = tokenizer.adds_eos();
    out.chat_templates = tokenizer.chat_templates();
    return out;
}

}  // namespace unsloth::tokenizer
