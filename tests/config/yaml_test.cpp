// YAML files, as values and as configurations of runs.
#include "unsloth/config/read_tree.h"

#include "tests/config/support.h"

namespace unsloth::testing {
namespace {

Json yaml(const std::string& text) {
    return config::parse_yaml(text, "run.yaml");
}
std::string yaml_error(const std::string& text) {
    return usage_message([&] { yaml(text); });
}

TEST(Yaml, ScalarsAreWhatTheyLookLike) {
    EXPECT_EQ(yaml("a: 1\nb: -2\nc: 0x10\nd: 0o17\ne: 1.5\nf: 2e-4\ng: 1.0e+3\nh: .5\ni: 18446744073709551615"),
              Json::parse(R"({"a": 1, "b": -2, "c": 16, "d": 15, "e": 1.5, "f": 2e-4, "g": 1000.0, "h": 0.5,
                              "i": 18446744073709551615})"));
    EXPECT_EQ(yaml("[500_000, 1_0.5]"), Json::parse("[500000, 10.5]"));
    EXPECT_EQ(yaml("[true, False, yes, NO, on, off]"), Json::parse("[true, false, true, false, true, false]"));
    EXPECT_EQ(yaml("a:\nb: ~\nc: null"), Json::parse(R"({"a": null, "b": null, "c": null})"));
    EXPECT_EQ(yaml("['1', \"true\", !!str 2, 1.2.3, 1-2, 0b1, -, .inf, _1, 1__0]"),
              Json::parse(R"(["1", "true", "2", "1.2.3", "1-2", "0b1", "-", ".inf", "_1", "1__0"])"));
    EXPECT_EQ(yaml(""), Json());
    EXPECT_EQ(yaml("# nothing\n---\n"), Json());
}

TEST(Yaml, ListsObjectsAnchorsAndMerges) {
    EXPECT_EQ(
        yaml("x: &base {a: 1, b: 2}\ny:\n  <<: *base\n  b: 3\nz: [*base]\nt: |\n  one\n  two\n"),
        Json::parse(R"({"x": {"a": 1, "b": 2}, "y": {"b": 3, "a": 1}, "z": [{"a": 1, "b": 2}], "t": "one\ntwo\n"})"));
    EXPECT_EQ(yaml("a: &a {k: 1}\nb: &b {k: 2, l: 2}\nc:\n  <<: [*a, *b]\n")["c"], Json::parse(R"({"k": 1, "l": 2})"));
}

TEST(Yaml, WhatIsOddIsRefusedWithItsPlace) {
    EXPECT_CONTAINS(yaml_error("a: 1\nb: 2\na: 3\n"), "run.yaml:3:1: the key \"a\" appears twice in one object");
    EXPECT_CONTAINS(yaml_error("a: [1\n"), "run.yaml:1:6: no valid YAML");
    EXPECT_CONTAINS(yaml_error("a:\n\t- 1\n"), "run.yaml:2:");
    EXPECT_CONTAINS(yaml_error("a: *b"), "run.yaml:1:");
    EXPECT_CONTAINS(yaml_error("a: 1\n---\nb: 2\n"), "a second document begins here");
    EXPECT_CONTAINS(yaml_error("a: !!python/object:os.system x"), "the tag tag:yaml.org,2002:python/object:os.system");
    EXPECT_CONTAINS(yaml_error("? [a]\n: 1\n"), "a key is a list or an object");
    EXPECT_CONTAINS(yaml_error("a:\n  <<: 3\n"), "<< wants an object");
    EXPECT_CONTAINS(yaml_error("a: &a [*a]"), "nest deeper than 64");
    EXPECT_CONTAINS(yaml_error(std::string(100, '[')), "run.yaml");
    EXPECT_CONTAINS(yaml_error(std::string(20000, '[') + std::string(20000, ']')), "run.yaml");
}

TEST(Yaml, ASyntaxErrorIsSaidInPlainWords) {
    EXPECT_CONTAINS(yaml_error("a:\n\t- 1\n"), "run.yaml:2:2: no valid YAML: the indentation has a tab");
    EXPECT_CONTAINS(yaml_error("files: *.jsonl\n"),
                    "a text that begins with * needs quotes\n"
                    "  1 | files: *.jsonl\n");
    EXPECT_CONTAINS(yaml_error("a: 1\n  b: 2\n"),
                    "run.yaml:2:4: no valid YAML: this colon is where no value can begin");
    EXPECT_CONTAINS(yaml_error("a: 1\n  b: 2\n"), "\n  2 |   b: 2\n    |    ^");
    EXPECT_CONTAINS(yaml_error("a: [1, 2\nb: 3\n"), "a comma or ] is missing before this");
    EXPECT_CONTAINS(yaml_error("a: {b: 1\n"), "a comma or } is missing before this");
    EXPECT_CONTAINS(yaml_error("a: \"x\\\""), "a quote is not closed before the file ends");
    for (const char* text : {"a: 'x\nb: 1\n", "a: \"x\n", "a: 'it''s\n"})
        EXPECT_CONTAINS(yaml_error(text), "run.yaml:1:4: no valid YAML: the quote that begins here is not closed");
    EXPECT_EQ(yaml("['it''s', \"a\\\"b\", '', \"\", 'x\n y']"), Json::parse(R"(["it's", "a\"b", "", "", "x y"])"));
    EXPECT_CONTAINS(yaml_error("a: @b\n"), "needs quotes");
    EXPECT_CONTAINS(yaml_error("a:\n  b: 1\n c: 2\n"), "this line is indented unlike the keys that it follows");
    EXPECT_CONTAINS(yaml_error("- a\nb: 1\n"), "a list and an object do not follow each other");
    EXPECT_CONTAINS(yaml_error("a: ]\n"), "this bracket closes none");
    EXPECT_CONTAINS(yaml_error("a: \"\\q\"\n"), "this backslash begins no known character");
    EXPECT_CONTAINS(yaml_error("a: 1\nb: 2\na: 3\n"), "\n  3 | a: 3\n    | ^");
}

// Each line stands for ten of the one before.
TEST(Yaml, AliasesThatWouldFillTheMemoryAreRefused) {
    std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 9; ++i) {
        const std::string before = "*a" + std::to_string(i - 1);
        text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
        for (int k = 0; k < 10; ++k) text += (k == 0 ? "" : ", ") + before;
        text += "]\n";
    }
    EXPECT_CONTAINS(yaml_error(text), "a million values");
}

TEST(Yaml, IsAConfigurationLikeJson) {
    const ScratchFolder folder;
    const config::LoadedConfig loaded =
        config::load_config(folder.write("run.yml",
                                         "model: {path: m}\ntraining:\n  learning_rate: 1e-4\n  save_strategy: no\n"
                                         "lora:\n  target_modules: [q_proj, v_proj]\n"),
                            {"--r", "4"});
    EXPECT_EQ(loaded.config.model.path, "m");
    EXPECT_EQ(loaded.config.training.learning_rate, 1e-4);
    EXPECT_EQ(loaded.config.training.save_steps, 0);
    EXPECT_EQ(loaded.config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    EXPECT_EQ(loaded.config.lora.r, 4);
    EXPECT_CONTAINS(usage_message([&] { config::load_config(folder.write("bad.yaml", "lora: {rr: 4}"), {}); }),
                    "bad.yaml: unknown option lora.rr");
}

}  // namespace
}  // namespace unsloth::testing
