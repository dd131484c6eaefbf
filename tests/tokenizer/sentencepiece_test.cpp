// SentencePiece-style tokenizers: tokenizer.json with byte fallback, and tokenizer.model.
#include <fstream>
#include <random>

#include "tokenizer/support.h"

namespace unsloth::test {
namespace {

tokenizer::Tokenizer golden_tokenizer(const char* name) {
    return tokenizer::Tokenizer::load(golden(std::string("tokenizer/") + name));
}

std::string golden_model() {
    return read_text(golden("tokenizer/spm_small/tokenizer.model"));
}

TEST(SentencePiece, DecodesWhatItEncoded) {
    std::mt19937 random(5);
    for (const char* name : {"llama2_small", "mistral_small", "spm_small"}) {
        const tokenizer::Tokenizer tokenizer = golden_tokenizer(name);
        for (int i = 0; i < 200; ++i) {
            // Not a space in front: "first" adds none there, so that decoding takes the text's own away.
            std::string text = "x";
            for (int k = 0; k < 40; ++k) text += static_cast<char>(random() % 128);
            text += "äß中🎉\u2028";
            EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text) << name;
        }
    }
}

TEST(SentencePiece, TakesAMegabyteWithoutSpaces) {
    for (const char* name : {"llama2_small", "mistral_small", "metaspace_small"}) {
        const tokenizer::Tokenizer tokenizer = golden_tokenizer(name);
        for (const std::string unit : {"a", "the", " ", "\n", "é", "中", "!", "<s"}) {
            std::string text = "x";
            while (text.size() < (unit == "a" ? 1'000'000u : 100'000u)) text += unit;
            const std::vector<int32_t> ids = tokenizer.encode(text, false);
            EXPECT_FALSE(ids.empty());
            if (name != std::string("metaspace_small")) {
                EXPECT_EQ(tokenizer.decode(ids, false), text);
            }
        }
    }
}

/// Tokens of a text cover it from end to end, whatever was inserted or merged.
TEST(SentencePiece, OffsetsCoverTheText) {
    for (const char* name : {"llama2_small", "mistral_small", "metaspace_small", "spm_legacy_small"}) {
        const tokenizer::Tokenizer tokenizer = golden_tokenizer(name);
        for (const json& row : read_rows(golden("tokenizer/" + std::string(name) + ".jsonl"))) {
            const auto text = row["text"].get<std::string>();
            const tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, false);
            ASSERT_EQ(encoding.ids, row["ids"].get<std::vector<int32_t>>()) << row["text"];
            ASSERT_EQ(encoding.offsets.size(), encoding.ids.size());
            std::size_t last_begin = 0, last_end = 0;
            for (const auto& [begin, end] : encoding.offsets) {
                EXPECT_LE(last_begin, begin) << row["text"];
                EXPECT_LE(begin, last_end) << row["text"];
                EXPECT_LE(begin, end) << row["text"];
                last_begin = begin;
                last_end = std::max(last_end, end);
            }
            if (!encoding.ids.empty()) {
                EXPECT_EQ(last_end, text.size()) << row["text"];
            }
        }
    }
}

/// A space that the tokenizer puts in front of a stretch stands at the stretch's first character.
TEST(SentencePiece, InsertedSpacesBelongToTheCharacterBehindThem) {
    const tokenizer::Encoding encoding = golden_tokenizer("llama2_small").encode_with_offsets("</s>\u00e9x", false);
    ASSERT_GE(encoding.offsets.size(), 3u);
    using Span = std::pair<std::size_t, std::size_t>;
    EXPECT_EQ(encoding.offsets[0].first, 0u);
    EXPECT_EQ(encoding.offsets.back(), Span(6, 7));
    EXPECT_EQ(encoding.offsets[encoding.offsets.size() - 2].first, 4u);
}

TEST(SentencePiece, KnowsItsSpecialTokens) {
    const tokenizer::Tokenizer tokenizer = golden_tokenizer("spm_legacy_small");
    EXPECT_EQ(tokenizer.bos_id(), 1);
    EXPECT_EQ(tokenizer.eos_id(), 2);
    EXPECT_TRUE(tokenizer.adds_bos());
    EXPECT_TRUE(tokenizer.adds_eos());
    EXPECT_TRUE(tokenizer.is_special(*tokenizer.added_token_id("<extra>")));
    EXPECT_FALSE(tokenizer.is_special(*tokenizer.added_token_id("<tool>")));
    EXPECT_EQ(tokenizer.added_token_id("<new>"), 600);
    EXPECT_EQ(tokenizer.vocab_size(), 601);
}

TEST(SentencePiece, ModelAloneIsEnough) {
    const ScratchFolder folder;
    EXPECT_FALSE(tokenizer::Tokenizer::exists(folder.path()));
    folder.write("tokenizer.model", golden_model());
    EXPECT_TRUE(tokenizer::Tokenizer::exists(folder.path()));
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.path());
    EXPECT_TRUE(tokenizer.adds_bos());
    EXPECT_FALSE(tokenizer.adds_eos());
    EXPECT_EQ(tokenizer.eos_id(), 2);
    EXPECT_EQ(tokenizer.stop_ids(), std::vector<int32_t>{2});
    folder.write("tokenizer_config.json", R"({"add_bos_token": false, "add_prefix_space": false})");
    const tokenizer::Tokenizer bare = tokenizer::Tokenizer::load(folder.path());
    EXPECT_FALSE(bare.adds_bos());
    EXPECT_EQ(bare.decode(bare.encode(" a", true), false), " a");
    folder.write("added_tokens.json", R"({"<pad>": 600})");
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).added_token_id("<pad>"), 600);
}

TEST(SentencePiece, SettingsAreChecked) {
    const ScratchFolder folder;
    folder.write("tokenizer.model", golden_model());
    const std::vector<std::pair<const char*, const char*>> cases = {
        {R"({"tokenizer_class": "T5Tokenizer"})", "key tokenizer_class"},
        {R"({"legacy": "no"})", "key legacy"},
        {R"({"add_bos_token": 1})", "key add_bos_token"},
        {R"({"add_bos_token": true, "bos_token": 7})", "key bos_token"},
        {R"({"added_tokens_decoder": []})", "key added_tokens_decoder"},
        {R"({"added_tokens_decoder": {"x": {"content": "a"}}})", "added_tokens_decoder.x"},
        {R"({"added_tokens_decoder": {"600": {"lstrip": true}}})", "'content' is missing"}};
    for (const auto& [config, expected] : cases) {
        folder.write("tokenizer_config.json", config);
        const std::string message = error_of(ErrorKind::input, [&] { tokenizer::Tokenizer::load(folder.path()); });
        EXPECT_NE(message.find("tokenizer_config.json"), std::string::npos) << message;
        EXPECT_NE(message.find(expected), std::string::npos) << message;
    }
}

/// A message is a list of (field, wire type) and its value; enough to write bad models.
std::string field(int number, int type, const std::string& value) {
    return std::string(1, static_cast<char>(number << 3 | type)) + value;
}
std::string block(int number, const std::string& value) {
    return field(number, 2, std::string(1, static_cast<char>(value.size())) + value);
}

TEST(SentencePiece, BadModelsAreRefused) {
    const std::string piece = block(1, block(1, "a")), bpe = block(2, field(3, 0, "\x02"));
    const std::vector<std::pair<std::string, const char*>> cases = {
        {"", "not a SentencePiece model"},
        {"IQ== 0\nIg== 1\n", "not a SentencePiece model"},
        {piece, "without trainer_spec"},
        {bpe, "not a SentencePiece model"},
        {piece + block(2, field(3, 0, "\x01")), "(unigram)"},
        {piece + block(2, "\xc0\x01\x01"), "treat_whitespace_as_suffix"},
        {piece + piece + bpe, "'a' is there twice"},
        {piece + bpe, "names the id 1 of 1"},
        {piece + block(1, block(1, "\xff")) + bpe, "UTF-8"},
        {piece + block(1, "") + bpe, "the text of a piece"},
        {piece + block(1, block(1, "b") + field(3, 0, "\x09")) + bpe, "type of piece"},
        {piece + block(1, field(1, 0, "\x05")) + bpe, "expected bytes"},
        {piece + field(1, 2, "\xff\xff\xff\xff\x0f"), "more bytes"},
        {piece + std::string(1, 0x4f), "wire type"},
        {piece + bpe + block(3, field(5, 0, std::string(1, '\0'))), "escape_whitespaces"}};
    const ScratchFolder folder;
    for (const auto& [bytes, expected] : cases) {
        folder.write("tokenizer.model", bytes);
        const std::string message = error_of("tokenizer.bad-file", [&] { tokenizer::Tokenizer::load(folder.path()); });
        EXPECT_NE(message.find("tokenizer.model"), std::string::npos) << message;
        EXPECT_NE(message.find(expected), std::string::npos) << message;
    }
}

/// Cut off anywhere, or with any byte changed: an Error or a tokenizer, never a crash.
TEST(SentencePiece, DamagedModelsAreRefusedOrRead) {
    const std::string whole = golden_model();
    const ScratchFolder folder;
    std::mt19937 random(11);
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
        std::string damaged = whole;
        if (i % 2) {
            damaged.resize(random() % whole.size());
        } else {
            for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
        }
        folder.write("tokenizer.model", damaged);
        try {
            tokenizer::Tokenizer::load(folder.path()).encode("Hello, wörld", true);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
            ++refused;
        }
    }
    EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace unsloth::test
