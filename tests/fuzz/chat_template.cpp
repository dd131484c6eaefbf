// A chat template: parsed, and rendered for several conversations.
// parser: src/tokenizer/jinja/*
// seeds: tests/golden/jinja/templates
// options: -max_len=4096 -dict=tests/fuzz/jinja.dict
#include <nlohmann/json.hpp>

#include "fuzz/support.h"
#include "tokenizer/jinja/template.h"
#include "unsloth/core/files.h"

namespace {

using namespace unsloth;

/// What templates of the golden files are given, and one more set with values of every kind.
std::vector<tokenizer::jinja::Variables> read_variables() {
    std::vector<tokenizer::jinja::Variables> all;
    auto rows = nlohmann::ordered_json::parse(read_file(fuzz::golden("jinja/conversations.json")));
    rows.push_back(nlohmann::ordered_json::parse(read_file(fuzz::golden("jinja/variables.json"))));
    for (const auto& row : rows) {
        tokenizer::jinja::Variables& variables = all.emplace_back();
        variables["add_generation_prompt"] = all.size() % 2 == 0;
        for (const auto& [key, value] : row.items()) variables[key] = tokenizer::jinja::from_json(value);
    }
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    constexpr int64_t most_steps = 200'000;                // the sanitizers make steps slow
    static const auto& all = *new auto(read_variables());  // stays: values must not outlive their thread's bookkeeping
    std::optional<tokenizer::jinja::Template> compiled;
    if (!fuzz::accepts([&] { compiled = tokenizer::jinja::Template::compile(fuzz::text_of(data, size), "input"); }))
        return 0;
    for (const tokenizer::jinja::Variables& variables : all) {
        fuzz::accepts([&] {
            const tokenizer::jinja::RenderedTemplate out = compiled->render(variables, most_steps);
            for (const auto& [begin, end] : out.generations)
                fuzz::require(begin <= end && end <= out.text.size(), "a generation outside of the text");
        });
    }
    return 0;
}
