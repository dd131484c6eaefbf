// What names a cached file: all that changes its examples, and nothing else.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "data/cache_support.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

TEST(Cache, WhateverChangesTheRowsChangesTheFile) {
    Setting setting;
    int expected = 0;
    const auto made_anew = [&](const char* what) {
        setting.load();
        EXPECT_EQ(setting.encoders, ++expected) << what;
        setting.load();
        EXPECT_EQ(setting.encoders, expected) << what;
    };
    made_anew("first");
    setting.folder.write("a.jsonl", text_rows(500).replace(10, 3, "RoW"));
    made_anew("content of the same length");
    setting.options.max_seq_length = 8;
    made_anew("max_seq_length");
    setting.options.train_on_prompt = true;
    made_anew("train_on_prompt");
    setting.cache.encoder_fingerprint = "another tokenizer";
    made_anew("tokenizer");
    setting.options.format = config::DataFormat::text;
    setting.options.vocab_size = 1000;
    made_anew("vocabulary");
    fs::last_write_time(setting.file, fs::file_time_type::clock::now());
    setting.load();
    EXPECT_EQ(setting.encoders, expected) << "a time says nothing";
}

struct Options {
    toy::Folder folder;
    config::Config config;
    config::OptionSet options;
    std::string rows = folder.write("a.jsonl", text_rows(3)).string(),
                others = folder.write("b.jsonl", text_rows(4)).string(),
                other_model = folder.write("other/tokenizer.json", "{\"b\": 1}").parent_path().string();
    config::Config base;

    Options() {
        config::declare_options(options, config);
        config.model.path =
            folder
                .write("model/tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})")
                .parent_path()
                .string();
        config.data.train_file = rows;
        base = config;
    }

    /// The names of all files in the cache that a run with `config` reads or makes.
    std::vector<std::string> keys() const {
        const CacheOptions cache{.folder = folder.path() / "cache",
                                 .encoder_fingerprint = run_encoder_fingerprint(
                                     run_tokenizer_folder(config, config.model.path), config.data)};
        std::vector<std::string> keys;
        for (const auto& sources : {training_sources(config.data), evaluation_sources(config.data)}) {
            std::vector<SourceFiles> files;
            for (const config::DataSource& source : sources) files.push_back(with_files(source));
            if (!files.empty()) keys.push_back(cache_key(files, dataset_options(config, {}), cache));
        }
        return keys;
    }

    /// Values other than the option's own; empty: it is a text or a list.
    static std::vector<config::Json> other_values(const config::Option& option) {
        const config::Json own = option.get();
        std::vector<config::Json> values;
        if (option.type == config::OptionType::boolean) values = {own.is_null() || !own.get<bool>()};
        if (option.type == config::OptionType::integer || option.type == config::OptionType::number)
            values = {own.is_null() ? config::Json(1) : config::Json(own.get<double>() + 1)};
        if (option.type == config::OptionType::choice)
            for (const std::string& choice : option.choices)
                if (choice != own) values.emplace_back(choice);
        return values;
    }
};

TEST(Cache, KeysDependOnEveryOptionThatChangesExamplesAndOnNoOther) {
    Options setting;
    const config::Json source{{"path", setting.rows}};
    const auto with = [&](const char* key, config::Json value) {
        config::Json changed = source;
        changed[key] = std::move(value);
        return config::Json::array({changed});
    };
    const std::map<std::string, std::vector<config::Json>> texts = {
        {"model.path", {setting.other_model}},
        {"model.adapter_name_or_path", {setting.other_model}},
        {"data.train_file", {setting.others}},
        {"data.train_split", {"[:2]", "[1:2]", "[:2%]"}},
        {"data.eval_split", {"[:2]", "[:1]+[2:]"}},
        {"data.datasets",
         {with("path", setting.others), with("format", "text"), with("columns", {{"text", "t"}}),
          with("template", "chatml"), with("max_samples", 2), with("split", "[:2]"),
          config::Json::array({source, source})}},
        {"data.eval_file", {setting.rows, setting.others}},
        {"data.eval_files", {{{"one", setting.rows}}, {{"one", setting.rows}, {"two", setting.others}}}},
        {"data.image_root", {setting.other_model}},
        {"model.special_tokens", {{{"eos_token", "a"}}, {{"eos_token", "b"}}}},
        {"data.columns", {{{"text", "t"}}, {{"text", "u"}}}},
        {"data.template", {"chatml", "zephyr"}},
        {"data.chat_template_kwargs", {{{"enable_thinking", false}}}}};
    const std::vector<std::string> before = setting.keys();
    ASSERT_EQ(before, setting.keys());
    for (const config::Option& option : setting.options.options()) {
        const std::string name = option.full_name();
        ASSERT_TRUE(option.changes_examples || option.section != "data")
            << name << ": say in src/config/options/examples.cpp whether encoded rows depend on it";
        const bool depends = option.changes_examples.value_or(false);
        const auto found = texts.find(name);
        const auto values = found == texts.end() ? Options::other_values(option) : found->second;
        ASSERT_TRUE(!depends || !values.empty()) << name << ": give this test other values of it";
        std::set<std::vector<std::string>> seen{before};
        for (const config::Json& value : values) {
            option.set(value);
            const std::vector<std::string> after = setting.keys();
            setting.config = setting.base;
            EXPECT_EQ(depends, seen.insert(after).second) << name << " " << value;
        }
    }
}

}  // namespace
}  // namespace unsloth::data
