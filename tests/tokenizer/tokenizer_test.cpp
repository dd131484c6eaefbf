#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "tokenizer/support.h"

namespace unsloth::test {
namespace {

tokenizer::Tokenizer llama() {
    return tokenizer::Tokenizer::load(golden("tokenizer/llama3_small"));
}

tokenizer::Tokenizer qwen() {
    return tokenizer::Tokenizer::load(golden("tokenizer/qwen_small"));
}

/// Joins the best pair again and again, straight from the definition.
std::vector<int32_t> reference_bpe(const json& model, const std::string& ascii_word) {
    std::map<std::pair<std::string, std::string>, std::size_t> ranks;
    for (const json& merge : model["merges"]) ranks.emplace(std::pair{merge[0], merge[1]}, ranks.size());
    std::vector<std::string> parts;
    for (const char c : ascii_word) parts.emplace_back(1, c);
    for (;;) {
        std::size_t best = ranks.size(), at = 0;
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto it = ranks.find({parts[i], parts[i + 1]});
            if (it != ranks.end() && it->second < best) best = it->second, at = i;
        }
        if (best == ranks.size()) break;
        parts[at] += parts[at + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    std::vector<int32_t> ids;
    for (const std::string& part : parts) ids.push_back(model["vocab"][part].get<int32_t>());
    return ids;
}

TEST(Tokenizer, MergesLongWordsByTheDefinition) {
    const json model = small_json("qwen_small")["model"];
    const tokenizer::Tokenizer tokenizer = qwen();
    std::mt19937 random(7);
    for (const std::size_t length : {1u, 2u, 31u, 32u, 33u, 34u, 60u, 200u, 700u}) {
        for (int repeat = 0; repeat < 4; ++repeat) {
            std::string word;
            const std::string letters = repeat % 2 ? "thea" : "aeinorstdhlcum";
            while (word.size() < length) word += letters[random() % letters.size()];
            EXPECT_EQ(tokenizer.encode(word, false), reference_bpe(model, word)) << word;
        }
    }
}

TEST(Tokenizer, DecodesWhatItEncoded) {
    const tokenizer::Tokenizer tokenizer = llama();
    std::mt19937 random(3);
    for (int i = 0; i < 200; ++i) {
        std::string text;
        for (int k = 0; k < 40; ++k) text += static_cast<char>(random() % 128);
        text += "äß中🎉";
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
    }
}

TEST(Tokenizer, TakesAMegabyteWithoutSpaces) {
    const tokenizer::Tokenizer tokenizer = llama();
    for (const std::string unit : {"a", "the", " ", "\n", "é", "!", "<|"}) {
        std::string text;
        while (text.size() < (unit == "a" ? 1'000'000u : 100'000u)) text += unit;
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
    }
}

/// A pattern that backs off over every byte of a run needs more steps than PCRE2 allows by default.
TEST(Tokenizer, TakesARunOfSpacesBeyondTheDefaultMatchLimit) {
    const std::string text(12'000'000, ' ');
    const tokenizer::Encoding encoding = llama().encode_with_offsets(text, false);
    std::size_t covered = 0;
    for (const auto& [begin, end] : encoding.offsets) {
        EXPECT_EQ(begin, covered);
        covered = end;
    }
    EXPECT_EQ(covered, text.size());
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
    const tokenizer::Tokenizer tokenizer = llama();
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"a\xff"
         "b",
         "a\uFFFDb"},
        {"\xe2\x82", "\uFFFD"},  // a cut character is one
        {"\xe2\x82\xe2\x82\xac", "\uFFFD\u20AC"},
        {"\xc0\xaf", "\uFFFD\uFFFD"},            // an overlong form is one per byte
        {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},  // so is a surrogate
        {"\xf0\x9f\x8e", "\uFFFD"},
        {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"x\x80", "x\uFFFD"}};
    for (const auto& [bytes, text] : cases) EXPECT_EQ(tokenizer.encode(bytes, false), tokenizer.encode(text, false));
    // Offsets are those of the bytes that came in.
    const tokenizer::Encoding encoding = tokenizer.encode_with_offsets("\xff<|eot_id|>\xfe", false);
    const auto eot = std::find(encoding.ids.begin(), encoding.ids.end(), *tokenizer.token_id("<|eot_id|>"));
    ASSERT_NE(eot, encoding.ids.end());
    EXPECT_EQ(encoding.offsets[eot - encoding.ids.begin()], (std::pair<std::size_t, std::size_t>(1, 11)));
    EXPECT_EQ(encoding.offsets.back().second, 12u);
}

TEST(Tokenizer, OffsetsReachBackThroughNormalisation) {
    const tokenizer::Tokenizer tokenizer = qwen();
    const std::string text = "x e\u0301<|im_end|>y";  // e + accent become one character of two bytes
    const tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, false);
    const auto end = std::find(encoding.ids.begin(), encoding.ids.end(), *tokenizer.token_id("<|im_end|>"));
    ASSERT_NE(end, encoding.ids.end());
    const auto at = static_cast<std::size_t>(end - encoding.ids.begin());
    EXPECT_EQ(encoding.offsets[at], (std::pair<std::size_t, std::size_t>(5, 15)));
    EXPECT_EQ(encoding.offsets[at - 1].second, 5u);
    EXPECT_EQ(encoding.offsets.back(), (std::pair<std::size_t, std::size_t>(15, 16)));
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
    const tokenizer::Tokenizer a = llama();
    EXPECT_EQ(a.bos_id(), a.token_id("<|begin_of_text|>"));
    EXPECT_EQ(a.eos_id(), a.token_id("<|eot_id|>"));
    EXPECT_TRUE(a.adds_bos());
    EXPECT_FALSE(a.adds_eos());
    EXPECT_TRUE(a.is_special(*a.bos_id()));
    EXPECT_FALSE(a.is_special(*a.token_id("a")));
    EXPECT_FALSE(a.is_special(-1));
    EXPECT_EQ(a.token(*a.token_id("Ġthe")), "Ġthe");
    EXPECT_EQ(a.vocab_size(), 256 + 400 + 5);
    EXPECT_EQ(a.added_token_id("the"), std::nullopt);
    EXPECT_EQ(a.token_id("not a token"), std::nullopt);
    EXPECT_THROW(a.token(static_cast<int32_t>(a.vocab_size())), CheckError);
    const tokenizer::Tokenizer b = qwen();
    EXPECT_EQ(b.bos_id(), std::nullopt);
    EXPECT_EQ(b.eos_id(), b.token_id("<|im_end|>"));
    EXPECT_FALSE(b.adds_bos());
    EXPECT_FALSE(b.is_special(*b.added_token_id("<think>")));
    const tokenizer::Tokenizer c = tokenizer::Tokenizer::load(golden("tokenizer/gpt2_small"));
    EXPECT_TRUE(c.adds_bos());
    EXPECT_TRUE(c.adds_eos());
}

TEST(Tokenizer, ReadsTheFilesBesideIt) {
    const ScratchFolder folder;
    folder.write("tokenizer.json", small_json("llama3_small").dump());
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).eos_id(), std::nullopt);
    EXPECT_TRUE(tokenizer::Tokenizer::load(folder.path()).adds_bos());  // the post-processor says it
    const auto id = [&](const char* token) { return *tokenizer::Tokenizer::load(folder.path()).token_id(token); };
    const int32_t eot = id("<|eot_id|>"), eos = id("<|end_of_text|>");
    folder.write("config.json", json{{"eos_token_id", eos}}.dump());
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).eos_id(), eos);
    folder.write("generation_config.json", json{{"eos_token_id", {eot, eos, 1 << 20}}}.dump());
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).eos_id(), eot);
    folder.write("special_tokens_map.json", R"({"eos_token": {"content": "<|end_of_text|>"}})");
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).eos_id(), eos);
    folder.write("tokenizer_config.json",
                 R"({"eos_token": "<|eot_id|>", "chat_template": [{"name": "tool_use", "template": "T"},
                     {"name": "default", "template": "D"}]})");
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.path());
    EXPECT_EQ(tokenizer.eos_id(), eot);
    EXPECT_EQ(tokenizer.stop_ids(), (std::vector<int32_t>{eot, eos}));
    using Named = std::vector<std::pair<std::string, std::string>>;
    EXPECT_EQ(tokenizer.chat_templates(), (Named{{"tool_use", "T"}, {"default", "D"}}));
    EXPECT_EQ(tokenizer.special_token_texts(), (Named{{"eos_token", "<|eot_id|>"}}));
    const auto names = [&] {
        std::vector<std::string> found;
        for (const auto& file : tokenizer.files()) found.push_back(file.lexically_relative(folder.path()).string());
        return found;
    };
    std::vector<std::string> files{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                   "generation_config.json"};
    EXPECT_EQ(names(), files);
    folder.write("chat_template.jinja", "J");
    std::filesystem::create_directory(folder.path() / "additional_chat_templates");
    folder.write("additional_chat_templates/rag.jinja", "R");
    folder.write("additional_chat_templates/notes.txt", "no template");
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).chat_templates(),
              (Named{{"tool_use", "T"}, {"default", "J"}, {"rag", "R"}}));
    EXPECT_EQ(tokenizer::Tokenizer::load(folder.path()).folder(), folder.path());
    files.insert(files.end(), {"chat_template.jinja", "additional_chat_templates/rag.jinja"});
    EXPECT_EQ(names(), files);
}

TEST(Tokenizer, PathsThatItsFilesNameAreNotFollowed) {
    const ScratchFolder folder;
    folder.write("secret.jinja", "secret");
    std::filesystem::create_directory(folder.path() / "tokenizer");
    folder.write("tokenizer/tokenizer.json", small_json("llama3_small").dump());
    folder.write("tokenizer/tokenizer_config.json", json{{"vocab_file", "../secret.jinja"},
                                                         {"tokenizer_file", "/etc/passwd"},
                                                         {"name_or_path", "../.."},
                                                         {"chat_template", "../secret.jinja"}}
                                                        .dump());
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.path() / "tokenizer");
    ASSERT_EQ(tokenizer.chat_templates().size(), 1u);
    EXPECT_EQ(tokenizer.chat_templates()[0].second, "../secret.jinja") << "a template, not the path of one";
    for (const auto& file : tokenizer.files()) EXPECT_EQ(file.parent_path(), folder.path() / "tokenizer");
}

TEST(Tokenizer, MergesMayBeStrings) {
    json document = small_json("qwen_small");
    for (json& merge : document["model"]["merges"]) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
    const ScratchFolder folder;
    folder.write("tokenizer.json", document.dump());
    const tokenizer::Tokenizer strings = tokenizer::Tokenizer::load(folder.path()), pairs = qwen();
    for (const json& row : read_rows(golden("tokenizer/qwen_small.jsonl"))) {
        const auto text = row["text"].get<std::string>();
        EXPECT_EQ(strings.encode(text, false), pairs.encode(text, false));
    }
}

/// Two tokenizers and eight threads share the per-thread caches.
TEST(Tokenizer, IsSafeFromManyThreads) {
    const tokenizer::Tokenizer a = llama(), b = qwen();
    const std::vector<json> rows_a = read_rows(golden("tokenizer/llama3_small.jsonl"));
    const std::vector<json> rows_b = read_rows(golden("tokenizer/qwen_small.jsonl"));
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (std::size_t i = 0; i < std::min(rows_a.size(), rows_b.size()); ++i) {
                wrong += a.encode(rows_a[i]["text"].get<std::string>(), false) !=
                         rows_a[i]["ids"].get<std::vector<int32_t>>();
                wrong += b.encode(rows_b[i]["text"].get<std::string>(), false) !=
                         rows_b[i]["ids"].get<std::vector<int32_t>>();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace unsloth::test
