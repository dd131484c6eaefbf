// Ids and strings against Hugging Face's `tokenizers`: small tokenizers of our own in tests/golden/tokenizer,
// and the real ones where UNSLOTH_SHARED names a folder that has them.
#include "tokenizer/support.h"

namespace unsloth::test {
namespace {

void expect_encodings(const tokenizer::Tokenizer& tokenizer, const std::vector<json>& rows) {
    for (const json& row : rows) {
        const auto text = row["text"].get<std::string>();
        const auto ids = row["ids"].get<std::vector<int32_t>>();
        const auto with_special = row["ids_with_special"].get<std::vector<int32_t>>();
        EXPECT_EQ(tokenizer.encode(text, false), ids) << row["text"].dump(-1, ' ', true);
        EXPECT_EQ(tokenizer.encode(text, true), with_special) << row["text"].dump(-1, ' ', true);
        EXPECT_EQ(tokenizer.decode(ids, false), row.value("decoded", text)) << row["text"].dump(-1, ' ', true);
        EXPECT_EQ(tokenizer.decode(with_special, true), row.value("decoded_skip_special", text))
            << row["text"].dump(-1, ' ', true);
    }
}

void expect_decodings(const tokenizer::Tokenizer& tokenizer, const std::vector<json>& rows) {
    for (const json& row : rows) {
        const auto ids = row["ids"].get<std::vector<int32_t>>();
        EXPECT_EQ(tokenizer.decode(ids, false), row["decoded"].get<std::string>()) << row["ids"];
        EXPECT_EQ(tokenizer.decode(ids, true), row["decoded_skip_special"].get<std::string>()) << row["ids"];
    }
}

class SmallTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(SmallTokenizer, EncodesAndDecodesAsTheReference) {
    const std::string name = GetParam();
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer/" + name));
    expect_encodings(tokenizer, read_rows(golden("tokenizer/" + name + ".jsonl")));
    expect_decodings(tokenizer, read_rows(golden("tokenizer/" + name + ".decode.jsonl")));
}
INSTANTIATE_TEST_SUITE_P(Golden, SmallTokenizer,
                         testing::Values("llama3_small", "qwen_small", "gpt2_small", "unknown_small", "llama2_small",
                                         "mistral_small", "metaspace_small", "spm_small", "spm_legacy_small"));

/// A tokenizer.json in folders that make transformers build its LlamaTokenizer from it, or not.
TEST(Golden, TokenizerJsonOfTheLlamaClass) {
    for (const json& one : read_rows(golden("tokenizer/llama_class.jsonl"))) {
        const ScratchFolder folder;
        folder.write("tokenizer.json", small_json(one["base"].get<std::string>()).dump());
        folder.write("tokenizer_config.json", one["config"].dump());
        if (one.contains("model_type")) folder.write("config.json", json{{"model_type", one["model_type"]}}.dump());
        SCOPED_TRACE(one["config"].dump());
        expect_encodings(tokenizer::Tokenizer::load(folder.path()), one["rows"].get<std::vector<json>>());
    }
}

/// llama2_small's vocabulary is that of spm_small's tokenizer.model, as transformers 4 converted it.
TEST(Golden, TokenizerJsonOfLlama2GivesTheIdsOfItsTokenizerModel) {
    const json config = json::parse(read_text(golden("tokenizer/spm_small/tokenizer_config.json")));
    const std::vector<json> rows = read_rows(golden("tokenizer/spm_small.jsonl"));
    for (const bool named : {true, false}) {  // legacy false is what is absent
        const ScratchFolder folder;
        json settings = config;
        if (!named) settings.erase("legacy");
        folder.write("tokenizer.json", small_json("llama2_small").dump());
        folder.write("tokenizer_config.json", settings.dump());
        expect_encodings(tokenizer::Tokenizer::load(folder.path()), rows);
    }
}

class RealTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, EncodesAndDecodesAsTheReference) {
    const std::string name = GetParam();
    const ScratchFolder folder;
    if (!expand_shared(name, folder)) GTEST_SKIP() << "set UNSLOTH_SHARED to a folder with tokenizers/" << name;
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.path());
    expect_encodings(tokenizer, shared_rows("tokenizer/" + name + ".jsonl", folder));
    expect_decodings(tokenizer, shared_rows("tokenizer/" + name + ".decode.jsonl", folder));
}
INSTANTIATE_TEST_SUITE_P(Golden, RealTokenizer, testing::Values("llama3_1", "qwen3"));

TEST(Golden, SplitsAsTheReference) {
    json document = small_json("llama3_small");
    const ScratchFolder folder;
    json current;
    std::optional<tokenizer::Tokenizer> tokenizer;
    for (const json& row : read_rows(golden("tokenizer/splits.jsonl"))) {
        if (row["pre_tokenizer"] != current) {
            current = document["pre_tokenizer"] = row["pre_tokenizer"];
            folder.write("tokenizer.json", document.dump());
            tokenizer = tokenizer::Tokenizer::load(folder.path());
        }
        EXPECT_EQ(tokenizer->encode(row["text"].get<std::string>(), false), row["ids"].get<std::vector<int32_t>>())
            << current << row["text"];
    }
}

/// Code points of `text` that begin before byte `end`.
std::size_t code_points(std::string_view text, std::size_t end) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < end; ++i) n += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    return n;
}

/// The reference gives every token of a cut character the whole character; ours are bytes.
TEST(Golden, OffsetsAreThoseOfTheReference) {
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer/llama3_small"));
    for (const json& row : read_rows(golden("tokenizer/llama3_small.jsonl"))) {
        const auto text = row["text"].get<std::string>();
        const tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, false);
        ASSERT_EQ(encoding.ids, row["ids"].get<std::vector<int32_t>>());
        const auto expected = row["offsets"].get<std::vector<std::pair<std::size_t, std::size_t>>>();
        ASSERT_EQ(encoding.offsets.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const auto [begin, end] = encoding.offsets[i];
            EXPECT_EQ(code_points(text, begin + 1) - 1, expected[i].first) << row["text"] << " token " << i;
            EXPECT_EQ(code_points(text, end), expected[i].second) << row["text"] << " token " << i;
        }
    }
}

}  // namespace
}  // namespace unsloth::test
