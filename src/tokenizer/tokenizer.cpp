#include "unsloth/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "tokenizer/merges.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"
#include "unsloth/core/memory_budget.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/utf8.h"

namespace unsloth::tokenizer {
namespace {

using Span = std::pair<std::size_t, std::size_t>;

struct Token {
    std::string raw;   ///< as the files spell it
    std::string text;  ///< what decoding starts from: bytes where tokens are simply joined
    bool exists = false, special = false;
};

std::vector<Token> tokens_by_id(const TokenizerSpec& spec) {
    int32_t last = -1;
    for (const auto& [token, id] : spec.model.vocab) last = std::max(last, id);
    for (const AddedToken& token : spec.added) last = std::max(last, token.id);
    std::vector<Token> tokens(static_cast<std::size_t>(last + 1));
    for (const auto& [token, id] : spec.model.vocab) tokens[id] = {token, token, true};
    std::unordered_set<std::string_view> special;
    for (const AddedToken& token : spec.added) {
        tokens[token.id] = {token.content, token.pattern(), true};
        if (token.special) special.insert(token.content);
    }
    for (Token& token : tokens) {
        token.special = token.exists && special.contains(token.text);
        if (!spec.decoder.only_byte_level()) continue;
        if (std::optional<std::string> bytes = bytes_of_token(token.text)) token.text = std::move(*bytes);
    }
    return tokens;
}

}  // namespace

struct Tokenizer::Impl {
    Impl(TokenizerSpec read, const std::filesystem::path& source)
        : folder(source),
          spec(std::move(read)),
          model(spec.model),
          raw_finder(spec.added, false),
          normalized_finder(spec.added, true),
          tokens(tokens_by_id(spec)),
          ids(tokens.size()) {
        for (std::size_t id = 0; id < tokens.size(); ++id) {
            if (tokens[id].exists) ids.insert(tokens[id].raw, static_cast<int32_t>(id));
        }
        spec.model.ids = StringTable();
        spec.model.vocab = {};
        spec.model.merges = {};
    }
    std::optional<int32_t> id_of(std::string_view token) const {
        const int32_t id = ids.find(token);
        return id < 0 ? std::nullopt : std::optional(id);
    }

    struct Output {
        std::vector<int32_t> ids;
        std::vector<Span> offsets;
        bool with_offsets = false;

        void add(int32_t id, Span span) {
            ids.push_back(id);
            if (with_offsets) offsets.push_back(span);
        }
    };
    /// A normalised stretch of the text, with the way back to the text.
    struct Stretch {
        std::size_t base;           ///< its place in the repaired text
        const Alignment& to_text;   ///< from the repaired text to the text
        AlignmentChain to_stretch;  ///< from the normalised stretch to the stretch

        Span origin(Span span) const {
            span = to_stretch.to_input(span);
            return to_text.to_input({base + span.first, base + span.second});
        }
    };
    void encode(std::string_view text, bool add_special, Output& out) const;
    void encode_stretch(std::string_view text, std::size_t base, const Alignment& to_text, Output& out) const;
    void encode_words(std::string_view text, std::size_t base, const Stretch& stretch, Output& out) const;

    std::filesystem::path folder;
    TokenizerSpec spec;  ///< without the vocabulary and merges, of which `model` and `tokens` have tables
    Bpe model;
    AddedTokenFinder raw_finder, normalized_finder;
    std::vector<Token> tokens;
    StringTable ids;  ///< of raw forms
    SpecialTokens roles;
};

/// A text as given: repaired where it is not UTF-8, then cut at added tokens.
void Tokenizer::Impl::encode(std::string_view text, bool add_special, Output& out) const {
    const MemoryBound bound;
    const std::size_t size = text.size();
    if (add_special) {
        for (const int32_t id : spec.prefix_ids) out.add(id, {0, 0});
    }
    std::string repaired;
    Alignment to_text;
    if (std::size_t valid = first_invalid_utf8(text); valid < size) {
        Rewriter out_of_text(true, growth_limit(size));
        for (; !text.empty(); valid = first_invalid_utf8(text)) {
            out_of_text.copy(text.substr(0, valid));
            text.remove_prefix(valid);
            if (text.empty()) break;
            const std::size_t broken = broken_utf8_length(text);
            out_of_text.replace("\uFFFD", broken);
            text.remove_prefix(broken);
        }
        repaired = out_of_text.take_text();
        to_text = out_of_text.take_alignment();
        text = repaired;
    }
    std::vector<AddedTokenFinder::Stretch> stretches;
    raw_finder.split(text, stretches);
    for (const auto& stretch : stretches) {
        if (stretch.id >= 0) {
            out.add(stretch.id, to_text.to_input({stretch.begin, stretch.end}));
        } else {
            encode_stretch(text.substr(stretch.begin, stretch.end - stretch.begin), stretch.begin, to_text, out);
        }
    }
    if (add_special) {
        for (const int32_t id : spec.suffix_ids) out.add(id, {size, size});
    }
}

/// A stretch without tokens of the first kind: normalised, then cut at tokens of the second.
void Tokenizer::Impl::encode_stretch(std::string_view text, std::size_t base, const Alignment& to_text,
                                     Output& out) const {
    std::string storage;
    Stretch stretch{base, to_text, {}};
    text = normalize(spec.normalizer, text, storage, out.with_offsets, stretch.to_stretch);
    if (normalized_finder.empty()) return encode_words(text, 0, stretch, out);
    std::vector<AddedTokenFinder::Stretch> parts;
    normalized_finder.split(text, parts);
    for (const auto& part : parts) {
        if (part.id >= 0) {
            out.add(part.id, stretch.origin({part.begin, part.end}));
        } else {
            encode_words(text.substr(part.begin, part.end - part.begin), part.begin, stretch, out);
        }
    }
}

/// Words and their tokens. `base` is the text's place in its normalised stretch.
void Tokenizer::Impl::encode_words(std::string_view text, std::size_t base, const Stretch& stretch, Output& out) const {
    const auto origin = [&](Span span) { return stretch.origin({base + span.first, base + span.second}); };
    SplitText split;
    split_words(spec.pre_tokenizer, text, base + stretch.base == 0, out.with_offsets, split);
    std::vector<uint32_t> lengths;
    const TokenSink sink{&out.ids, out.with_offsets ? &lengths : nullptr};
    for (const Word& word : split.words) {
        lengths.clear();
        model.encode(split.text.substr(word.begin, word.end - word.begin), sink);
        std::size_t at = word.begin;
        for (const uint32_t length : lengths) {
            out.offsets.push_back(origin(split.alignment.to_input({at, at + length})));
            at += length;
        }
    }
}

bool Tokenizer::exists(const std::filesystem::path& folder) {
    return std::filesystem::is_regular_file(folder / "tokenizer.json") ||
           std::filesystem::is_regular_file(folder / "tokenizer.model");
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
    const bool is_file = std::filesystem::is_regular_file(path) && path.extension() == ".json";
    const std::filesystem::path folder = is_file ? path.parent_path() : path;
    const std::filesystem::path json = is_file ? path : path / "tokenizer.json";
    const bool sentencepiece = !std::filesystem::exists(json) && exists(folder);
    if (!sentencepiece && !std::filesystem::exists(json)) {
        const bool is_folder = std::filesystem::is_directory(path);
        const std::string meant = is_folder ? "" : advice_on_missing(path);
        throw Error(
            "tokenizer.not-found",
            cat(path.string(), is_folder ? " has neither tokenizer.json nor tokenizer.model" : ": no such tokenizer"),
            meant.empty() ? "Name a folder with a tokenizer, such as a model's." : meant);
    }
    TokenizerSpec spec = sentencepiece ? read_sentencepiece_tokenizer(folder) : read_tokenizer_json(json);
    auto impl = std::make_shared<Impl>(std::move(spec), folder);
    impl->roles = read_special_tokens(folder, [&](std::string_view token) { return impl->id_of(token); });
    SpecialTokens& roles = impl->roles;
    if (!roles.bos) roles.bos = impl->spec.bos;
    if (!roles.eos && impl->spec.eos) {
        roles.eos = impl->spec.eos;
        roles.stop.insert(roles.stop.begin(), *impl->spec.eos);
    }
    // A folder without tokenizer_config.json still says what precedes every text.
    if (!roles.bos && !impl->spec.prefix_ids.empty()) roles.bos = impl->spec.prefix_ids.front();
    std::erase_if(roles.stop, [&](int32_t id) { return static_cast<std::size_t>(id) >= impl->tokens.size(); });
    return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
    Impl::Output out;
    out.ids.reserve(text.size() / 3 + 2);
    impl_->encode(text, add_special, out);
    return std::move(out.ids);
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, bool add_special) const {
    Impl::Output out;
    out.with_offsets = true;
    impl_->encode(text, add_special, out);
    return {std::move(out.ids), std::move(out.offsets)};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    const bool joined = impl_->spec.decoder.only_byte_level();
    std::string bytes;
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
        if (id < 0 || id >= vocab_size()) continue;
        const Token& token = impl_->tokens[id];
        if (!token.exists || (skip_special && token.special)) continue;
        if (joined) {
            bytes += token.text;
        } else {
            tokens.push_back(token.text);
        }
    }
    if (!joined) return impl_->spec.decoder.decode(std::move(tokens));
    return first_invalid_utf8(bytes) == bytes.size() ? bytes : repair_utf8(bytes);
}

int64_t Tokenizer::vocab_size() const {
    return static_cast<int64_t>(impl_->tokens.size());
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
    return impl_->id_of(token);
}

std::string Tokenizer::token(int32_t id) const {
    UNSLOTH_CHECK(id >= 0 && id < vocab_size(), "token id ", id, " of ", vocab_size());
    return impl_->tokens[id].raw;
}

std::optional<int32_t> Tokenizer::added_token_id(std::string_view token) const {
    const auto found = std::ranges::find(impl_->spec.added, token, &AddedToken::content);
    return found == impl_->spec.added.end() ? std::nullopt : std::optional(found->id);
}

bool Tokenizer::is_special(int32_t id) const {
    return id >= 0 && id < vocab_size() && impl_->tokens[id].special;
}

std::optional<int32_t> Tokenizer::bos_id() const {
    return impl_->roles.bos;
}

std::optional<int32_t> Tokenizer::eos_id() const {
    return impl_->roles.eos;
}

const std::vector<int32_t>& Tokenizer::stop_ids() const {
    return impl_->roles.stop;
}

bool Tokenizer::adds_bos() const {
    return bos_id() && !impl_->spec.prefix_ids.empty() && impl_->spec.prefix_ids.front() == *bos_id();
}

bool Tokenizer::adds_eos() const {
    return eos_id() && !impl_->spec.suffix_ids.empty() && impl_->spec.suffix_ids.back() == *eos_id();
}

const std::filesystem::path& Tokenizer::folder() const {
    return impl_->folder;
}

std::vector<std::filesystem::path> Tokenizer::files_in(const std::filesystem::path& folder) {
    static constexpr std::array names = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "generation_config.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "processor_config.json",  // of models that see images
                                         "preprocessor_config.json",
                                         "video_preprocessor_config.json"};
    std::vector<std::filesystem::path> found;
    for (const char* name : names) {
        if (std::filesystem::is_regular_file(folder / name)) found.push_back(folder / name);
    }
    std::ranges::move(additional_templates(folder), std::back_inserter(found));
    return found;
}

const std::vector<std::pair<std::string, std::string>>& Tokenizer::chat_templates() const {
    return impl_->roles.chat_templates;
}

const std::vector<std::pair<std::string, std::string>>& Tokenizer::special_token_texts() const {
    return impl_->roles.texts;
}

}  // namespace unsloth::tokenizer
