// Tokens of the vocabulary in the roles that model.special_tokens gives them.
#include "unsloth/data/special_tokens.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/data/run_tokenizer.h"

namespace unsloth::data {
namespace {

nlohmann::json json_of(const std::filesystem::path& file) {
    return nlohmann::json::parse(read_file(file));
}

struct TokenizerFolder {
    test::ScratchFolder folder;
    TokenizerFolder() {
        folder.write("tokenizer.json",
                     R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<end>": 2, "<s>": 3}, "merges": []}})");
        folder.write("tokenizer_config.json", R"({"eos_token": {"content": "b", "lstrip": false}, "kept": 7})");
        folder.write("special_tokens_map.json", R"({"eos_token": "b"})");
        folder.write("generation_config.json", R"({"eos_token_id": [1], "top_p": 0.5})");
    }
};

TEST(SpecialTokensOfARun, TakeThePlaceOfTheTokenizersOwn) {
    const TokenizerFolder own;
    config::Config config;
    const std::filesystem::path model = own.folder.path();
    EXPECT_EQ(run_tokenizer_folder(config, model), model);
    config.model.special_tokens = {{"eos_token", "<end>"}, {"pad_token", "a"}, {"bos_token", "<s>"}};
    const std::filesystem::path made = run_tokenizer_folder(config, model);
    EXPECT_EQ(run_tokenizer_folder(config, model), made) << "once a process";
    const tokenizer::Tokenizer tokenizer = load_run_tokenizer(made, 4);
    EXPECT_EQ(tokenizer.eos_id(), 2);
    EXPECT_EQ(tokenizer.bos_id(), 3);
    EXPECT_EQ(json_of(made / "tokenizer_config.json"),
              nlohmann::json::parse(R"({"eos_token": {"content": "<end>", "lstrip": false}, "kept": 7,
                                        "pad_token": "a", "bos_token": "<s>"})"));
    EXPECT_EQ(json_of(made / "special_tokens_map.json")["eos_token"], "<end>");
    EXPECT_EQ(json_of(made / "generation_config.json"),
              nlohmann::json::parse(R"({"eos_token_id": [2, 1], "top_p": 0.5, "pad_token_id": 0, "bos_token_id": 3})"));
    spec::ModelSpec spec;
    spec.eos_token_ids = {1, 2};
    set_special_ids(spec, config.model.special_tokens, tokenizer);
    EXPECT_EQ(spec.eos_token_ids, (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(spec.pad_token_id, 0);
}

TEST(SpecialTokensOfARun, MustBeInTheVocabulary) {
    const TokenizerFolder own;
    try {
        with_special_tokens(own.folder.path(), {{"pad_token", "<pad>"}});
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("pad_token '<pad>' is no token of"), std::string::npos);
    }
}

}  // namespace
}  // namespace unsloth::data
