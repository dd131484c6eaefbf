// BPE tokenizers, read from Hugging Face's `tokenizer.json` (byte-level as in Llama 3, Qwen and GPT-2; SentencePiece
// style with byte fallback as in Llama 2, Mistral and TinyLlama) or from SentencePiece's `tokenizer.model`.
//
// Ids and strings equal those of the `tokenizers` library 0.23: added tokens are cut out first, the rest is normalised,
// split, and merged by rank (Sennrich et al. 2016, over bytes or characters). A tokenizer.model gives what transformers
// 5's LlamaTokenizer makes of it, and so does a tokenizer.json that it would read: one without byte-level steps next to
// a tokenizer_config.json that names this class (unless config.json's model_type is mistral, which has another). There
// `legacy`, `add_prefix_space`, `add_bos_token` and `add_eos_token` count. What a file asks for and this reader does
// not know is an input Error that names the file and the key. `truncation` and `padding` of the file are not applied,
// as in transformers, which resets them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unsloth::tokenizer {

/// Tokens and where each came from: the half-open range of bytes of the text given to `encode`.
/// A token that the post-processor added has the empty range (0, 0) in front and (size, size) at the end.
struct Encoding {
    std::vector<int32_t> ids;
    std::vector<std::pair<std::size_t, std::size_t>> offsets;
};

/// Immutable after load; cheap to copy (copies share one table); every member is safe from any thread.
class Tokenizer {
  public:
    /// Reads `tokenizer.json` (or else `tokenizer.model`) and, where they exist, tokenizer_config.json,
    /// special_tokens_map.json, generation_config.json and the chat templates of a folder; a .json file is used as the
    /// tokenizer.json of its folder. Input Error with file and key.
    static Tokenizer load(const std::filesystem::path& path);
    /// Whether `folder` holds a tokenizer.json or tokenizer.model.
    static bool exists(const std::filesystem::path& folder);

    /// `add_special`: with what the post-processor adds (BOS, EOS). Any bytes are accepted: those that are
    /// not UTF-8 count as U+FFFD, one per maximal cut-off sequence (as Rust's from_utf8_lossy and Python's
    /// "replace"). Input Error for texts that the file's own steps do not get through: regular expressions that
    /// take too long, replacements that make a text of many times its size.
    std::vector<int32_t> encode(std::string_view text, bool add_special) const;
    Encoding encode_with_offsets(std::string_view text, bool add_special) const;

    /// Always valid UTF-8: cut characters become U+FFFD. Ids outside the vocabulary are skipped. Errors as for encode.
    std::string decode(std::span<const int32_t> ids, bool skip_special) const;

    /// Largest id + 1, added tokens included (a model's embedding needs at least this many rows).
    int64_t vocab_size() const;
    /// The id of a token in its raw form (as `vocab` and `added_tokens` spell it, so "Ġthe" for " the").
    std::optional<int32_t> token_id(std::string_view token) const;
    /// Raw form of an id; empty where the vocabulary has a hole. CheckError outside [0, vocab_size()).
    std::string token(int32_t id) const;
    /// The id of an added token that is recognised inside texts; nullopt for other strings.
    std::optional<int32_t> added_token_id(std::string_view token) const;
    bool is_special(int32_t id) const;

    std::optional<int32_t> bos_id() const;  ///< tokenizer_config's (special_tokens_map's) bos_token
    std::optional<int32_t> eos_id() const;  ///< eos_token; else the first of generation_config's eos_token_id
    /// Every id that ends a generation: eos_id and generation_config's eos_token_id, without repetition.
    const std::vector<int32_t>& stop_ids() const;
    bool adds_bos() const;  ///< encode(text, true) begins with bos_id
    bool adds_eos() const;  ///< encode(text, true) ends with eos_id

    const std::filesystem::path& folder() const;
    /// Files of `folder`, which need hold no tokenizer, that belong with an adapter: the tokenizer's,
    /// generation_config.json and the chat templates, additional_chat_templates/*.jinja among them. Absolute or
    /// relative as `folder` is.
    static std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);
    std::vector<std::filesystem::path> files() const { return files_in(folder()); }
    /// The model's chat templates, raw Jinja by name ("default" is the one for ordinary conversations): of
    /// tokenizer_config.json, chat_template.jinja and additional_chat_templates/. Empty without any.
    const std::vector<std::pair<std::string, std::string>>& chat_templates() const;
    /// bos_token, eos_token, unk_token, … where the model's files name them, and their texts.
    const std::vector<std::pair<std::string, std::string>>& special_token_texts() const;

  private:
    struct Impl;
    explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<const Impl> impl_;
};

}  // namespace unsloth::tokenizer
