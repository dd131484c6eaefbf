// Tokenizers as lists of tokens: what llama.cpp can express, and what it cannot.
#include "unsloth/tokenizer/vocabulary.h"

#include <map>

#include "tokenizer/support.h"

namespace unsloth::tokenizer {
namespace {

using namespace test;

spec::Vocabulary small(const std::string& name, const std::string& pre = {}) {
    return read_vocabulary(golden("tokenizer/" + name), pre);
}

/// A folder with a changed tokenizer.json of a small tokenizer.
template <class Change>
void expect_refused(const std::string& name, const std::string& words, const Change& change) {
    const ScratchFolder folder;
    json document = small_json(name);
    change(document);
    folder.write("tokenizer.json", document.dump());
    try {
        read_vocabulary(folder.path());
        ADD_FAILURE() << "accepted; expected an error about " << words;
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "export.tokenizer");
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(Vocabulary, OfAByteLevelTokenizer) {
    const spec::Vocabulary vocabulary = small("llama3_small");
    const json document = small_json("llama3_small");
    EXPECT_EQ(vocabulary.kind, spec::Vocabulary::Kind::byte_bpe);
    EXPECT_EQ(vocabulary.pre_tokenizer, "llama-bpe");
    EXPECT_TRUE(vocabulary.add_bos);
    EXPECT_FALSE(vocabulary.add_eos);
    const json& model = document.at("model");
    ASSERT_EQ(vocabulary.tokens.size(), model.at("vocab").size() + document.at("added_tokens").size());
    for (const auto& [text, id] : model.at("vocab").items()) {
        EXPECT_EQ(vocabulary.tokens[id.get<std::size_t>()].text, text);
        EXPECT_EQ(vocabulary.tokens[id.get<std::size_t>()].kind, spec::TokenKind::normal);
    }
    for (const json& added : document.at("added_tokens")) {
        const spec::VocabularyToken& token = vocabulary.tokens[added.at("id").get<std::size_t>()];
        EXPECT_EQ(token.text, added.at("content").get<std::string>());
        EXPECT_EQ(token.kind, spec::TokenKind::control);
    }
    ASSERT_EQ(vocabulary.merges.size(), model.at("merges").size());
    const json& first = model.at("merges").at(0);
    EXPECT_EQ(vocabulary.merges.front(), first.is_string()
                                             ? first.get<std::string>()
                                             : first[0].get<std::string>() + " " + first[1].get<std::string>());
    ASSERT_TRUE(vocabulary.bos);
    EXPECT_EQ(vocabulary.tokens[static_cast<std::size_t>(*vocabulary.bos)].text, "<|begin_of_text|>");
}

TEST(Vocabulary, TellsTokensOfTextsFromMarkers) {
    const spec::Vocabulary vocabulary = small("qwen_small");
    EXPECT_EQ(vocabulary.pre_tokenizer, "qwen2");
    const json document = small_json("qwen_small");
    std::map<spec::TokenKind, int> kinds;
    for (const json& added : document.at("added_tokens")) {
        const spec::VocabularyToken& token = vocabulary.tokens[added.at("id").get<std::size_t>()];
        const std::string text = added.at("content");
        const bool marker = added.at("special").get<bool>() || text.starts_with("<|");
        EXPECT_EQ(token.kind, marker ? spec::TokenKind::control : spec::TokenKind::user_defined) << text;
        ++kinds[token.kind];
    }
    EXPECT_GT(kinds[spec::TokenKind::user_defined], 0);
    EXPECT_GT(kinds[spec::TokenKind::control], 0);
}

TEST(Vocabulary, OfASentencePieceTokenizerInJson) {
    const spec::Vocabulary vocabulary = small("llama2_small");
    EXPECT_EQ(vocabulary.kind, spec::Vocabulary::Kind::sentencepiece);
    EXPECT_TRUE(vocabulary.add_space_prefix);
    EXPECT_TRUE(vocabulary.add_bos);
    const auto& tokens = vocabulary.tokens;
    EXPECT_EQ(tokens[3].text, "<0x00>");
    EXPECT_EQ(tokens[3].kind, spec::TokenKind::byte);
    EXPECT_EQ(tokens[1].kind, spec::TokenKind::control);
    // A merge of lower rank must come first: its result has the higher score.
    std::map<std::string, float> scores;
    for (const spec::VocabularyToken& token : tokens) scores[token.text] = token.score;
    float last = 1;
    const json document = small_json("llama2_small");
    for (const json& merge : document.at("model").at("merges")) {
        const std::string text = merge.is_string() ? merge.get<std::string>()
                                                   : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
        const std::size_t space = text.find(' ');
        const float score = scores.at(text.substr(0, space) + text.substr(space + 1));
        EXPECT_LE(score, last) << text;
        last = score;
    }
    EXPECT_LT(last, -100);
}

TEST(Vocabulary, OfASentencePieceModel) {
    const spec::Vocabulary vocabulary = small("spm_small");
    EXPECT_EQ(vocabulary.kind, spec::Vocabulary::Kind::sentencepiece);
    EXPECT_EQ(vocabulary.tokens[0].text, "<unk>");
    EXPECT_EQ(*vocabulary.bos, 1);
    EXPECT_EQ(*vocabulary.eos, 2);
    int bytes = 0;
    for (const spec::VocabularyToken& token : vocabulary.tokens) bytes += token.kind == spec::TokenKind::byte;
    EXPECT_EQ(bytes, 256);
}

TEST(Vocabulary, TakesScoresOfTheModelBesideTheJsonIfItIsTheSame) {
    const ScratchFolder folder;
    std::filesystem::copy(golden("tokenizer/spm_small/tokenizer.model"), folder.path() / "tokenizer.model");
    const spec::Vocabulary model = read_vocabulary(folder.path());
    json document = small_json("llama2_small");
    json& vocab = document["model"]["vocab"] = json::object();
    document["model"]["merges"] = json::array({json::array({model.tokens[300].text, model.tokens[301].text})});
    document["added_tokens"] = json::array();
    document.erase("post_processor");
    for (std::size_t id = 0; id < model.tokens.size(); ++id) vocab[model.tokens[id].text] = id;
    vocab[model.tokens[300].text + model.tokens[301].text] = model.tokens.size();
    folder.write("tokenizer.json", document.dump());
    const spec::Vocabulary same = read_vocabulary(folder.path());
    int compared = 0;
    for (std::size_t id = 0; id < model.tokens.size(); ++id) {
        if (model.tokens[id].kind != spec::TokenKind::normal) continue;
        EXPECT_EQ(same.tokens[id].score, model.tokens[id].score) << id;
        ++compared;
    }
    EXPECT_GT(compared, 100);
    EXPECT_LT(same.tokens[400].score, -10);

    vocab.erase(model.tokens[350].text);
    vocab["another"] = 350;
    folder.write("tokenizer.json", document.dump());
    EXPECT_GT(read_vocabulary(folder.path()).tokens[400].score, -10) << "its one merge gives ranks 0 and -1 alone";
}

TEST(Vocabulary, RefusesWhatLlamaCppCannotExpress) {
    expect_refused("llama3_small", "pre_tokenizer",
                   [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+"; });
    expect_refused("llama3_small", "pre_tokenizer",
                   [](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; });
    expect_refused("llama3_small", "normalise",
                   [](json& j) { j["normalizer"] = {{"type", "Prepend"}, {"prepend", "x"}}; });
    expect_refused("qwen_small", "pre_tokenizer", [](json& j) { j["model"]["ignore_merges"] = true; });
    expect_refused("llama2_small", "SentencePiece's way",
                   [](json& j) { j["normalizer"]["normalizers"][0]["prepend"] = "x"; });
    expect_refused("mistral_small", "SentencePiece's way", [](json& j) { j["pre_tokenizer"]["split"] = true; });
    expect_refused("llama2_small", "neither", [](json& j) { j["model"]["byte_fallback"] = false; });
    expect_refused("metaspace_small", "neither", [](json&) {});
}

TEST(Vocabulary, TakesANameThatIsGiven) {
    const ScratchFolder folder;
    json document = small_json("llama3_small");
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+";
    folder.write("tokenizer.json", document.dump());
    EXPECT_EQ(read_vocabulary(folder.path(), "my-pre").pre_tokenizer, "my-pre");
    document = small_json("llama3_small");
    document["model"]["ignore_merges"] = false;
    folder.write("tokenizer.json", document.dump());
    EXPECT_EQ(read_vocabulary(folder.path()).pre_tokenizer, "smaug-bpe");
}

TEST(Vocabulary, RefusesTokensThatAreThereTwice) {
    expect_refused("llama2_small", "twice", [](json& j) {
        j["added_tokens"].push_back({{"id", 600},
                                     {"content", "\u2581x y"},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false},
                                     {"special", false}});
        j["added_tokens"].push_back({{"id", 601},
                                     {"content", " x y"},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false},
                                     {"special", false}});
    });
}

}  // namespace
}  // namespace unsloth::tokenizer
