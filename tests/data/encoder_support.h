// A tokenizer whose tokens are bytes, and a row through it.
#pragma once

#include "unsloth/data/encoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/core/files.h"

namespace unsloth::data {

using Json = nlohmann::ordered_json;
using Ints = std::vector<int32_t>;

inline std::string utf8(uint32_t code_point) {
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

/// GPT-2's spelling of a byte: printable ones as they are, the others counted from U+0100.
inline std::vector<std::string> byte_spellings() {
    std::vector<std::string> spellings;
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        spellings.push_back(utf8(printable ? byte : next++));
    }
    return spellings;
}

inline constexpr int32_t special_base = 256;
inline const std::vector<std::string> specials{"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                               "<|end_header_id|>", "<|eot_id|>"};
inline constexpr int32_t bos = special_base, eos = bos + 1, header = bos + 2, header_end = bos + 3, turn_end = bos + 4;

/// A Llama 3 style tokenizer without merges: byte b has id b. It adds BOS; `names_eos` leaves eos_token out.
inline tokenizer::Tokenizer byte_tokenizer(const toy::Folder& folder, bool names_eos = true) {
    Json vocabulary, added = Json::array();
    const auto spellings = byte_spellings();
    for (std::size_t byte = 0; byte < 256; ++byte) vocabulary[spellings[byte]] = byte;
    for (std::size_t i = 0; i < specials.size(); ++i)
        added.push_back({{"id", special_base + static_cast<int32_t>(i)},
                         {"content", specials[i]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    const Json first{{"SpecialToken", {{"id", specials[0]}, {"type_id", 0}}}},
        text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, pair{{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    const Json tokenizer{
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", {first, text}},
          {"pair", {first, text, first, pair}},
          {"special_tokens", {{specials[0], {{"id", specials[0]}, {"ids", {bos}}, {"tokens", {specials[0]}}}}}}}},
        {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", vocabulary},
          {"merges", Json::array()}}}};
    Json config{{"bos_token", specials[0]}};
    if (names_eos) config["eos_token"] = specials[1];
    folder.write("tokenizer_config.json", config.dump());
    return tokenizer::Tokenizer::load(folder.write("tokenizer.json", tokenizer.dump()).parent_path());
}

/// Ids of the byte tokenizer: each byte's value.
inline Ints byte_ids(std::string_view text) {
    Ints ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
}

/// The only row of a file with this line.
inline Sample only_row(const RowEncoder& encoder, const std::string& line) {
    const toy::Folder folder;
    std::string one_line = line;
    std::erase(one_line, '\n');
    return Dataset::load(folder.write("a.jsonl", one_line + "\n"), {}, &encoder).sample(0);
}

/// The ids of a row must be `prompt`, not trained, and `answer`, trained.
inline void expect_answer(const Sample& row, const Ints& prompt, const Ints& answer) {
    EXPECT_EQ(row.ids, toy::joined({prompt, answer}));
    EXPECT_EQ(row.labels, toy::joined({Ints(prompt.size(), ignore_label), answer}));
}

}  // namespace unsloth::data
