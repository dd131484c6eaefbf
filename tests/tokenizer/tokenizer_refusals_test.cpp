// Files of tokenizers that are refused, by what is wrong with them.
#include "tokenizer/support.h"

namespace unsloth::test {
namespace {

struct BadFile {
    const char* patch;     ///< JSON merge patch to a good tokenizer.json
    const char* expected;  ///< within the message
};

class BadTokenizerJson : public testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizerJson, IsRefusedByName) {
    json document = small_json("llama3_small");
    document.merge_patch(json::parse(GetParam().patch));
    const ScratchFolder folder;
    folder.write("tokenizer.json", document.dump());
    const std::string message = error_of(ErrorKind::input, [&] { tokenizer::Tokenizer::load(folder.path()); });
    EXPECT_NE(message.find((folder.path() / "tokenizer.json").string()), std::string::npos) << message;
    EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
}
INSTANTIATE_TEST_SUITE_P(
    Tokenizer, BadTokenizerJson,
    testing::Values(
        BadFile{R"({"version": "2.0"})", "key version"}, BadFile{R"({"model": {"type": "Unigram"}})", "Unigram"},
        BadFile{R"({"model": null})", "'model' is missing"},
        BadFile{R"({"model": {"dropout": 0.1}})", "key model.dropout"},
        BadFile{R"({"model": {"continuing_subword_prefix": "##"}})", "key model.continuing_subword_prefix"},
        BadFile{R"({"model": {"end_of_word_suffix": "</w>"}})", "key model.end_of_word_suffix"},
        BadFile{R"({"model": {"continuing_subword_prefix": 1}})", "key model.continuing_subword_prefix"},
        BadFile{R"({"model": {"fuse_unk": "yes"}})", "key model.fuse_unk"},
        BadFile{R"({"pre_tokenizer": null, "model": {"unk_token": "no such"}})", "key model.unk_token"},
        BadFile{R"({"model": {"new_option": 1}})", "new_option"},
        BadFile{R"({"model": {"vocab": {"a": -1}}})", "model.vocab.a"},
        BadFile{R"({"model": {"vocab": {"zzzz": 3}}})", "the id 3"},
        BadFile{R"({"model": {"vocab": {"zzzz": 4000000000}}})", "model.vocab.zzzz"},
        BadFile{R"({"model": {"vocab": []}})", "key model.vocab"},
        BadFile{R"({"model": {"merges": [["a", "nope"]]}})", "model.merges[0]: 'nope'"},
        BadFile{R"({"model": {"merges": ["a b c"]}})", "model.merges[0]"},
        BadFile{R"({"model": {"merges": [["a", 1]]}})", "model.merges[0]"},
        BadFile{R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Bert"}]}})",
                "normalizers[1]"},
        BadFile{R"({"normalizer": {"type": "Prepend", "prepend": 5}})", "key normalizer.prepend"},
        BadFile{R"({"normalizer": {"type": "Replace", "pattern": "a", "content": "b"}})", "key normalizer.pattern"},
        BadFile{R"({"normalizer": {"type": "Replace", "pattern": {"String": "a"}}})", "'content' is missing"},
        BadFile{R"({"normalizer": {"type": "NFC", "form": 1}})", "form"},
        BadFile{R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab", "pretokenizers": null}})",
                "key pre_tokenizer.replacement"},
        BadFile{
            R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last", "pretokenizers": null}})",
            "key pre_tokenizer.prepend_scheme"},
        BadFile{
            R"({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "pretokenizers": null}})",
            "key pre_tokenizer.prepend_scheme: expected always or never after a normalizer"},
        BadFile{
            R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "add_prefix_space": false, "pretokenizers": null}})",
            "key pre_tokenizer.add_prefix_space"},
        BadFile{R"({"post_processor": {"processors": [{"type": "TemplateProcessing", "single":
            [{"SpecialToken": {"id": "<x>", "type_id": 0}}], "pair": [], "special_tokens": {}}]}})",
                "'<x>' is missing"},
        BadFile{R"({"post_processor": {"processors": [{"type": "TemplateProcessing", "single":
            [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<x>", "type_id": 0}}], "pair": [],
            "special_tokens": {"<x>": {"id": "<x>", "ids": [0, 70000], "tokens": ["a", "<x>"]}}}]}})",
                "there is none with the id 70000"},
        BadFile{
            R"({"decoder": {"type": "Strip", "content": " ", "start": -1, "stop": 0, "add_prefix_space": null, "trim_offsets": null, "use_regex": null}})",
            "key decoder.start"},
        BadFile{
            R"({"decoder": {"type": "Sequence", "decoders": {}, "add_prefix_space": null, "trim_offsets": null, "use_regex": null}})",
            "key decoder.decoders"},
        BadFile{R"({"added_tokens": [{"id": 0, "content": 5}]})", "key added_tokens[0].content"},
        BadFile{R"({"added_tokens": {}})", "key added_tokens"}));

/// What no published model of ours uses.
TEST(Tokenizer, UnknownStepsAreRefusedByName) {
    const std::pair<const char*, std::vector<const char*>> parts[] = {
        {"normalizer",
         {"NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "ByteLevel", "Precompiled"}},
        {"pre_tokenizer",
         {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "FixedLength", "UnicodeScripts"}},
        {"post_processor", {"BertProcessing", "RobertaProcessing"}},
        {"decoder", {"BPEDecoder", "WordPiece", "CTC"}}};
    const ScratchFolder folder;
    for (const auto& [part, types] : parts) {
        for (const char* type : types) {
            json document = small_json("llama3_small");
            document[part] = {{"type", type}};
            folder.write("tokenizer.json", document.dump());
            const std::string message =
                error_of("tokenizer.unsupported", [&] { tokenizer::Tokenizer::load(folder.path()); });
            EXPECT_NE(message.find(std::string("key ") + part + ": the type '" + type + "' is not known"),
                      std::string::npos)
                << message;
        }
    }
}

/// What Oniguruma, the reference's engine, reads in another way than PCRE2 does is refused, not guessed.
TEST(Tokenizer, ForeignRegularExpressionsAreRefused) {
    json document = small_json("llama3_small");
    json& split = document["pre_tokenizer"]["pretokenizers"][0];
    const ScratchFolder folder;
    const auto message = [&] {
        folder.write("tokenizer.json", document.dump());
        return error_of(ErrorKind::input, [&] { tokenizer::Tokenizer::load(folder.path()); });
    };
    const std::vector<std::pair<const char*, const char*>> cases = {{"(a", "not valid"},
                                                                    {"[\\W]", "'\\W'"},
                                                                    {"\\h", "'\\h'"},
                                                                    {"\\x41", "'\\x'"},
                                                                    {"[^a&&b]", "'&&'"},
                                                                    {"[a[^b]]", "[^ within"},
                                                                    {"[[^b]a]", "[^ within"},
                                                                    {"[[^b]]", "[^ within"},
                                                                    {"[a-[b]]", "'-['"},
                                                                    {"[a&&[b]]", "'&&'"},
                                                                    {"[[:alpha:]]", "'[: within"},
                                                                    {"[[a]-z]", "']-'"},
                                                                    {"a{2}++", "'{2}++'"},
                                                                    {"a{2}?{3}", "'{2}?{'"},
                                                                    {"a)", "')'"},
                                                                    {"a{,2}", "'{,2}'"},
                                                                    {"(?m:.)", "'(?m'"},
                                                                    {"(?<n>a)", "'(?<'"},
                                                                    {"[]a]", "']'"},
                                                                    {"[a", "[ without"},
                                                                    {"\\p{Greek}", "\\p{Greek}"},
                                                                    {"a\\", "'\\'"}};
    for (const auto& [pattern, expected] : cases) {
        split["pattern"]["Regex"] = pattern;
        const std::string text = message();
        EXPECT_NE(text.find("key pre_tokenizer.pretokenizers[0].pattern.Regex"), std::string::npos) << text;
        EXPECT_NE(text.find(expected), std::string::npos) << text;
    }
    split["pattern"]["Regex"] = "a";
    split["behavior"] = "Other";
    EXPECT_NE(message().find("pretokenizers[0].behavior"), std::string::npos);
    split["type"] = "Whitespaces";
    EXPECT_NE(message().find("'Whitespaces'"), std::string::npos);
}

TEST(Tokenizer, DeeplyNestedPartsAreRefused) {
    constexpr int depth = 10'000;
    json document = small_json("llama3_small");
    const ScratchFolder folder;
    const std::vector<std::pair<const char*, const char*>> parts = {{"normalizer", "normalizers"},
                                                                    {"pre_tokenizer", "pretokenizers"},
                                                                    {"decoder", "decoders"},
                                                                    {"post_processor", "processors"}};
    for (const auto& [part, key] : parts) {
        document[part] = "here";
        std::string text = document.dump(), opening, closing;
        for (int i = 0; i < depth; ++i) {
            opening += std::string("{\"type\":\"Sequence\",\"") + key + "\":[";
            closing += "]}";
        }
        text.replace(text.find("\"here\""), 6, opening + closing);
        folder.write("tokenizer.json", text);
        const std::string message =
            error_of("tokenizer.unsupported", [&] { tokenizer::Tokenizer::load(folder.path()); });
        EXPECT_NE(message.find("nested"), std::string::npos) << message.substr(0, 300);
        document = small_json("llama3_small");
    }
    // A value of the wrong type is described, not written out.
    std::string text = document.dump();
    text.replace(text.find("\"version\":\"1.0\""), 15,
                 "\"version\":" + std::string(depth, '[') + std::string(depth, ']'));
    folder.write("tokenizer.json", text);
    EXPECT_NE(error_of("json.wrong-value", [&] { tokenizer::Tokenizer::load(folder.path()); }).find("a list of 1"),
              std::string::npos);
}

TEST(Tokenizer, NumbersThatNoDoubleHoldsAreRefused) {
    const ScratchFolder folder;
    folder.write("tokenizer.json", R"({"version": "1.0", "truncation": 1e999})");
    EXPECT_NE(error_of("json.syntax", [&] { tokenizer::Tokenizer::load(folder.path()); })
                  .find("tokenizer.json: not valid JSON"),
              std::string::npos);
    folder.write("tokenizer.json", small_json("llama3_small").dump());
    folder.write("generation_config.json", R"({"temperature": 1e999})");
    EXPECT_NE(
        error_of("json.syntax", [&] { tokenizer::Tokenizer::load(folder.path()); }).find("generation_config.json"),
        std::string::npos);
}

TEST(Tokenizer, AFewTokensDoNotMakeLargeTables) {
    const ScratchFolder folder;
    json document = small_json("llama3_small");
    document["model"]["vocab"]["far away"] = 268435455;  // tables for so many ids would take 30 GB
    folder.write("tokenizer.json", document.dump());
    EXPECT_NE(error_of("json.wrong-value", [&] { tokenizer::Tokenizer::load(folder.path()); })
                  .find("['far away']: expected an id from 0 to "),
              std::string::npos);
    document["model"]["vocab"]["far away"] = 1'000'000;
    document["post_processor"] = nullptr;  // names ids of added tokens, which count on from the vocabulary's size
    folder.write("tokenizer.json", document.dump());
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).vocab_size(), 1'000'001);
}

TEST(Tokenizer, StepsThatDoubleTheTextEndBeforeTheMemoryDoes) {
    const ScratchFolder folder;
    const auto with = [&](const char* part, const char* members, const json& step) {
        json document = small_json("llama2_small");
        json steps = json::array();
        for (int i = 0; i < 50; ++i) steps.push_back(step);
        document[part] = {{"type", "Sequence"}, {members, steps}};
        folder.write("tokenizer.json", document.dump());
        return tokenizer::Tokenizer::load(folder.path());
    };
    const auto encode = [](const tokenizer::Tokenizer& tokenizer) {
        return error_of("tokenizer.gave-up", [&] { tokenizer.encode("é a", false); });
    };
    const json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
    const std::string reason = "out of a short one";
    EXPECT_NE(encode(with("normalizer", "normalizers", doubling)).find(reason), std::string::npos);
    const json bytes = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    EXPECT_NE(encode(with("pre_tokenizer", "pretokenizers", bytes)).find(reason), std::string::npos);
    const tokenizer::Tokenizer decodes = with("decoder", "decoders", doubling);
    const std::vector<int32_t> ids = decodes.encode("a a", false);
    EXPECT_NE(error_of("tokenizer.gave-up", [&] { decodes.decode(ids, false); }).find(reason), std::string::npos);
}

TEST(Tokenizer, OfAnAddedTokenThatStandsTwiceTheLaterCounts) {
    const ScratchFolder folder;
    json document = small_json("llama3_small");
    json& added = document["added_tokens"];
    for (const bool special : {false, true})
        added.push_back({{"id", 700},
                         {"content", "<twice>"},
                         {"single_word", false},
                         {"lstrip", special},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", special}});
    folder.write("tokenizer.json", document.dump());
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.path());
    const auto id = tokenizer.added_token_id("<twice>");
    ASSERT_TRUE(id);
    EXPECT_TRUE(tokenizer.is_special(*id));
    EXPECT_EQ(tokenizer.encode("  <twice>", false), std::vector<int32_t>{*id}) << "lstrip takes the spaces";
    EXPECT_EQ(tokenizer.vocab_size(), *id + 1);
}

TEST(Tokenizer, BrokenJsonNamesFileAndLine) {
    const ScratchFolder folder;
    folder.write("tokenizer.json", "{\n\"version\": \"1.0\",\n oops}");
    const std::string message = error_of("json.syntax", [&] { tokenizer::Tokenizer::load(folder.path()); });
    EXPECT_NE(message.find("tokenizer.json: not valid JSON"), std::string::npos) << message;
    EXPECT_NE(message.find("line 3"), std::string::npos) << message;
    folder.write("tokenizer.json", std::string(100000, '['));
    error_of("json.syntax", [&] { tokenizer::Tokenizer::load(folder.path()); });
    std::filesystem::remove(folder.path() / "tokenizer.json");
    const std::string missing = error_of("tokenizer.not-found", [&] { tokenizer::Tokenizer::load(folder.path()); });
    EXPECT_NE(missing.find("tokenizer.json"), std::string::npos) << missing;
}

}  // namespace
}  // namespace unsloth::test
