// Folders of runs.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/report/event_file.h"
#include "unsloth/report/hardware_rate.h"
#include "unsloth/report/page.h"
#include "unsloth/report/plot.h"

namespace unsloth::report {

class RunFolder : public test::ScratchFolder {
  public:
    void append(const std::string& text) const { std::ofstream(path() / "metrics.jsonl", std::ios::app) << text; }
};

inline std::string step_line(int step, double loss) {
    return nlohmann::json{{"step", step},          {"epoch", step / 10.0},
                          {"loss", loss},          {"grad_norm", 0.5},
                          {"learning_rate", 1e-4}, {"tokens", 1000},
                          {"trained_tokens", 800}, {"tokens_per_second", 2000.0 + step},
                          {"step_ms", 500.0},      {"memory_gib", 10.5}}
               .dump() +
           "\n";
}

/// A run of 100 steps whose loss falls, with one spike at step 50.
inline RunFolder& example_run(RunFolder& folder) {
    std::string rows;
    for (int step = 1; step <= 100; ++step) rows += step_line(step, step == 50 ? 9.0 : 2.0 + 1.0 / step);
    rows += R"({"step": 100, "epoch": 10, "eval_loss": 1.75, "eval_tokens": 12})"
            "\n";
    folder.append(rows);
    folder.write("run_config.json", R"({"model": {"path": "<base> & co"}, "training": {"max_steps": 200}})");
    const std::vector<int64_t> lengths = {1, 2, 3, 500, 512, 513};
    const auto tokens = [&](int64_t i) { return lengths[static_cast<std::size_t>(i)]; };
    folder.write(facts_file, run_facts_json({200,
                                             int64_t{12} << 30,
                                             {{"base weights", int64_t{9} << 30}, {"layer inputs", int64_t{4} << 30}},
                                             row_lengths(6, tokens)}));
    return folder;
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}
#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(contains(text, part)) << (part) << " is not in\n" << (text)

/// Of a GPU whose plan foretold 2500 tokens per second.
inline RunFolder& example_on_gpu(RunFolder& folder) {
    example_run(folder);
    RunFacts facts = read_run_facts(folder.path());
    facts.planned_rate = 2500, facts.device = "A <card>";
    folder.write(facts_file, run_facts_json(facts));
    return folder;
}

}  // namespace unsloth::report
