// A run's page.
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "report/report_support.h"

namespace unsloth::report {
namespace {

namespace fs = std::filesystem;

TEST(Page, HoldsAllThatItShowsAndNothingFromElsewhere) {
    RunFolder folder;
    const FolderLock running(folder.path());
    const std::string html = page(read_run(example_run(folder).path()), 5);
    for (const char* id : {"loss", "learning_rate", "grad_norm", "tokens_per_second", "step_ms", "memory_gib",
                           "row_tokens", "planned_memory"})
        EXPECT_CONTAINS(html, std::string("<svg id=\"") + id + "\"");
    EXPECT_CONTAINS(html, "http-equiv=\"refresh\" content=\"5\"");
    EXPECT_CONTAINS(html, "prefers-color-scheme: dark");
    EXPECT_CONTAINS(html, "width=device-width");
    EXPECT_CONTAINS(html, "100 / 200");
    EXPECT_CONTAINS(html, "<b>10.5 GiB</b><span>memory</span>");
    EXPECT_CONTAINS(html, "<b>12 GiB</b><span>planned memory</span>");
    EXPECT_CONTAINS(html, "&lt;base&gt; &amp; co");
    EXPECT_CONTAINS(html, "[50,9]");  // the spike
    EXPECT_CONTAINS(html, "running, 00:50 left");
    EXPECT_CONTAINS(html, ">9.00 GiB</text>");
    EXPECT_CONTAINS(html, "in all 12.00 GiB; 1.00 GiB serve two purposes alternately");
    EXPECT_FALSE(contains(html, "http://") || contains(html, "https://") || contains(html, "<link") ||
                 contains(html, " src=") || contains(html, "nan") || contains(html, "inf"));
}

TEST(Page, SaysThatARunWasKilled) {
    RunFolder folder;
    const fs::path path = example_run(folder).path();
    fs::last_write_time(path / "metrics.jsonl", fs::file_time_type::clock::now() - std::chrono::hours(1));
    const report::Run killed = read_run(path);
    EXPECT_TRUE(killed.killed());
    EXPECT_FALSE(std::isfinite(killed.seconds_left()));
    for (const std::string& text : {page(killed, 5), run_view(killed, 80, 40, false),
                                    comparison(std::vector<report::Run>{killed, killed}, 80, false)}) {
        EXPECT_CONTAINS(text, "stopped without finishing at step 100 (last heartbeat 20");
        EXPECT_FALSE(contains(text, "running") || contains(text, "http-equiv") || contains(text, "  left "));
    }
    folder.write("run.lock", "process 7 on another-machine");
    EXPECT_CONTAINS(read_run(path).killed_text(), "unless process 7 on another-machine still runs it");
    folder.append(R"({"event": "summary", "exit_reason": "finished", "seconds": 5})"
                  "\n");
    EXPECT_FALSE(read_run(path).killed());
}

TEST(Page, SmoothsCurvesOfManyPointsAlone) {
    for (const int steps : {99, 100}) {
        const RunFolder folder;
        std::string rows;
        for (int step = 1; step <= steps; ++step) rows += step_line(step, step % 2 == 0 ? 2.0 : 3.0);
        folder.append(rows);
        const std::string html = page(read_run(folder.path()), 0);
        EXPECT_EQ(contains(html, "bold: mean of the steps before"), steps == 100) << steps;
        EXPECT_EQ(contains(html, "<polyline class=\"raw\""), steps == 100) << steps;
    }
}

TEST(Page, DrawsTheObjectivesOwnFigures) {
    RunFolder folder;
    folder.append(R"({"step": 1, "loss": 2, "rewards/margins": 0.1, "rewards/accuracies": 0.5, "grad_norm/layers.0": 1}
{"step": 2, "loss": 1, "rewards/margins": 0.3, "rewards/accuracies": null}
{"step": 2, "eval_loss": 1.5, "eval_tokens": 9, "eval_rewards/margins": 0.2, "eval_token_accuracy": 0.625}
)");
    const report::Run run = read_run(folder.path());
    EXPECT_EQ(run.steps[0].more,
              (std::map<std::string, double>{{"rewards/margins", 0.1}, {"rewards/accuracies", 0.5}}));
    const std::string html = page(run, 0);
    EXPECT_CONTAINS(html, "<svg id=\"rewards/margins\"");
    EXPECT_CONTAINS(html, "data-points='[[1,0.1],[2,0.3]]'");
    EXPECT_CONTAINS(html, "data-points='[[1,0.5]]'");
    EXPECT_CONTAINS(html, "data-points='[[2,0.625]]'");  // of evaluations alone
    EXPECT_FALSE(contains(html, "id=\"divergence\""));
    EXPECT_EQ(eval_points(run, {"rewards/margins", "", "", nullptr}), (Points{{2, 0.2}}));
}

TEST(Page, DrawsTheNormsOfLayersWhereTheyAreLogged) {
    RunFolder folder;
    EXPECT_FALSE(contains(page(read_run(example_run(folder).path()), 0), "layer_norms"));
    for (int step = 101; step <= 300; ++step) {
        nlohmann::json row = nlohmann::json::parse(step_line(step, 2));
        for (int layer = 0; layer < 80; ++layer) row["grad_norm/layers." + std::to_string(layer)] = 0.01 * (layer + 1);
        row["grad_norm/head"] = nullptr;
        row["grad_norm/a'b"] = 1e-9;
        if (step == 207) row["grad_norm/layers.40"] = 9;
        folder.append(row.dump() + "\n");
    }
    const report::Run run = read_run(folder.path());
    EXPECT_EQ(run.parts.size(), 81u);  // a head without a number is none
    EXPECT_TRUE(run.steps[0].part_norms.empty());
    const std::string html = page(run, 0);
    EXPECT_CONTAINS(html, "<svg id=\"layer_norms\"");
    EXPECT_CONTAINS(html, "data-points=\"[[101,&quot;0.8 in layers.79&quot;]");
    EXPECT_CONTAINS(html, "[207,&quot;9 in layers.40&quot;]");  // the spike
    EXPECT_CONTAINS(html, "faint 0.0009, full 9");              // four decades
    EXPECT_CONTAINS(html, ">a'b</text>");
    EXPECT_CONTAINS(html, ">70</text>");
    EXPECT_FALSE(contains(html, ">71</text>"));
    const std::string chart = html.substr(html.find("<svg id=\"layer_norms\""));
    std::size_t cells = 0;
    for (std::size_t at = 0; (at = chart.find('Z', at)) != std::string::npos; ++at) ++cells;
    EXPECT_EQ(cells, 60u * 81);  // 200 steps in 60 columns
}

TEST(Page, SaysSmallMemoryInMiB) {
    RunFolder folder;
    folder.append(R"({"step": 1, "loss": 2, "memory_gib": 0.03125})"
                  "\n");
    const report::Run run = read_run(folder.path());
    const std::string html = page(run, 0);
    EXPECT_CONTAINS(html, "<b>32 MiB</b>");
    EXPECT_CONTAINS(html, "Memory (MiB)");
    EXPECT_CONTAINS(html, "data-points='[[1,32]]'");
    EXPECT_CONTAINS(run_view(run, 80, 40, false), "  32 MiB");
    EXPECT_CONTAINS(comparison({run}, 80, false), "32 MiB");
}

TEST(Page, ShowsWhatTheRunAnsweredLastFirst) {
    RunFolder folder;
    example_run(folder);
    folder.write(samples_file, R"({"step": 50, "prompt": "Who <are> you?", "answer": "a clause"}
{"step": 100, "prompt": "Who <are> you?", "answer": "a licence"}
{"step": 100, "prompt": "And?", "answer": ""}
)");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "<summary>Who &lt;are&gt; you?</summary>");
    EXPECT_LT(html.find("<td>step 100</td><td>a licence</td>"), html.find("<td>step 50</td><td>a clause</td>"));
    EXPECT_CONTAINS(html, "<summary>And?</summary>");
    folder.write(samples_file, "");
    EXPECT_FALSE(contains(page(read_run(folder.path()), 0), "a licence"));
}

/// Of the first row of a prompt; and nothing but a PNG file of the page itself.
TEST(Page, ShowsThumbnailsOfPrompts) {
    RunFolder folder;
    example_run(folder);
    const std::string png = "data:image/png;base64,iVBORw0KGgo=";
    const auto row = [](int step, int number, const std::string& more) {
        return cat(R"({"step": )", step, R"(, "number": )", number, R"(, "prompt": "What?", "answer": "x")", more,
                   "}\n");
    };
    folder.write(samples_file, row(50, 1, cat(R"(, "images": [")", png, "\"]")) +
                                   row(50, 2, R"(, "images": ["https://example.org/a.png", "data:image/png;base64,\">x",
                                                              "data:image/svg+xml;base64,AA==", 7])") +
                                   row(100, 1, "") + row(100, 2, ""));
    const std::string html = page(read_run(folder.path()), 0);
    const std::string shown = cat("src=\"", png, "\"");
    ASSERT_NE(html.find(shown), std::string::npos);
    EXPECT_EQ(html.find(shown), html.rfind(shown));
    EXPECT_EQ(html.find("<img "), html.rfind("<img "));
    EXPECT_FALSE(contains(html, "example.org"));
    EXPECT_FALSE(contains(html, "svg+xml"));
    // Prompts of the same words are two.
    EXPECT_NE(html.find("<summary>What?</summary>"), html.rfind("<summary>What?</summary>"));
}

/// A run's folder may be anyone's: names in it are text, and only PNG files within it are pictures.
TEST(Page, ShowsTrainingRowsWithImages) {
    RunFolder folder;
    EXPECT_FALSE(contains(page(read_run(example_run(folder).path()), 0), "Training row"));
    const std::string png = "data:image/png;base64,iVBORw0KGgo=";
    const auto image = [](const nlohmann::json& tokens, const std::string& url) {
        return nlohmann::json{{"tokens", tokens}, {"url", url}};
    };
    const nlohmann::json row = {{"row", 7},
                                {"tokens", 90},
                                {"text", "see [<img src=x>&.jpg: 4 x 4 patches]\n"},
                                {"images",
                                 {image({2, 6}, png), image({8, 9}, "https://example.org/a.png"),
                                  image({4, "x"}, "data:image/png;base64,\">"), image(3, ""), 5}}};
    folder.write(pictured_file, row.dump() + "\n[]\nx\n");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "Training row 7: 90 tokens");
    EXPECT_CONTAINS(html, cat("src=\"", png, "\""));
    EXPECT_EQ(html.find("<img "), html.rfind("<img "));
    EXPECT_CONTAINS(html, "image 1: 4 tokens from token 2");
    EXPECT_CONTAINS(html, "image 2: 1 token from token 8");
    EXPECT_CONTAINS(html, "<pre>see [&lt;img src=x&gt;&amp;.jpg: 4 x 4 patches]\n</pre>");
    EXPECT_FALSE(contains(html, "example.org"));
}

TEST(Page, ShowsSomeCompletionsOfEachStepLastFirst) {
    RunFolder folder;
    example_run(folder);
    std::string rows;
    for (int i = 0; i < 9; ++i)
        rows +=
            cat(R"({"step":1,"prompt":"<2> + 2 = ","completion":")", i, R"(","exact":0.5,"advantage":-1.25})", "\n");
    folder.write(completions_file, rows + R"({"step":2,"prompt":"a","completion":null,"exact":null,"advantage":0})"
                                          "\n{\"st");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "<td>exact 0.5, advantage -1.25</td><td>&lt;2&gt; + 2 = <b>7</b></td>");
    EXPECT_FALSE(contains(html, "<b>8</b>"));
    EXPECT_LT(html.find("Completions of step 2"), html.find("Completions of step 1"));
}

TEST(Page, ShareOfTheHardwareIsThereWhereItIsKnown) {
    RunFolder folder;
    EXPECT_FALSE(contains(page(read_run(example_run(folder).path()), 0), "MFU"));
    folder.append(R"({"step": 101, "loss": 2, "mfu": 0.425})"
                  "\n");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "<b>42.5 %</b><span>of the GPU's rate (MFU)");
    EXPECT_CONTAINS(html, "Share of the GPU's rate (MFU)");
}

TEST(Page, OfARunThatEnded) {
    RunFolder folder;
    example_run(folder).append(
        R"({"event": "summary", "exit_reason": "error", "error": "step 101: <loss> is not finite"})"
        "\n");
    const std::string html = page(read_run(folder.path()), 5);
    EXPECT_FALSE(contains(html, "http-equiv"));
    EXPECT_CONTAINS(html, "step 101: &lt;loss&gt; is not finite");
    const RunFolder empty;
    empty.append("");
    EXPECT_CONTAINS(page(read_run(empty.path()), 5), "stopped without finishing before a step was logged");
    const FolderLock running(empty.path());
    EXPECT_CONTAINS(page(read_run(empty.path()), 5), "no step yet");
}

TEST(Page, PictureOfLossAndMemoryAsAFile) {
    RunFolder folder;
    const std::string svg = picture(read_run(example_run(folder).path()));
    EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), 0u);
    EXPECT_CONTAINS(svg, "prefers-color-scheme: dark");
    EXPECT_CONTAINS(svg, "base weights");
    EXPECT_CONTAINS(svg, "class=\"main\"");
    EXPECT_FALSE(contains(svg, "Learning rate") || contains(svg, "nan"));
    const RunFolder empty;
    empty.append("");
    EXPECT_THROW(picture(read_run(empty.path())), Error);
}

TEST(Page, TicksOfANarrowRangeDiffer) {
    RunFolder folder;
    folder.append(R"({"step": 1, "loss": 1, "tokens_per_second": 18500})"
                  "\n"
                  R"({"step": 2, "loss": 1, "tokens_per_second": 18512})"
                  "\n");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, ">18505</text>");  // three digits say 18.5k of all
    EXPECT_FALSE(contains(html, ">18.5k</text>"));
}

TEST(Page, NamesGreatStepsInFull) {
    const RunFolder folder;
    folder.append(step_line(1234567, 2) + step_line(1234600, 3));
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "data-from=\"1234567\" data-to=\"1234600\"");
    EXPECT_CONTAINS(html, ">1234580</text>");
    EXPECT_FALSE(contains(html, ">1.23M</text>"));
}

TEST(Page, GroupsThatDoNotFitAreOneLine) {
    RunFolder folder;
    RunFacts facts{200, 100, {}, {}};
    for (int i = 1; i <= 9; ++i) facts.planned_groups.emplace_back("group " + std::to_string(i), i << 20);
    example_run(folder).write(facts_file, run_facts_json(facts));
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, ">group 4</text>");
    EXPECT_CONTAINS(html, ">others</text>");
    EXPECT_CONTAINS(html, ">6.0 MiB</text>");  // 1 + 2 + 3
    EXPECT_FALSE(contains(html, ">group 3</text>"));
}

TEST(Page, ComparesAGpuWithItsPlan) {
    RunFolder folder;
    const std::string html = page(read_run(example_on_gpu(folder).path()), 0);
    for (const char* part :
         {"<b>2500</b><span>planned, with full rows</span>", "<b>10.5 GiB</b><span>peak GPU memory</span>",
          "plan, with full rows", ">measured peak</text>", ">10.50 GiB</text>", ", on A &lt;card&gt;</p>"})
        EXPECT_CONTAINS(html, part);
    RunFolder other;
    RunFacts facts = read_run_facts(example_run(other).path());
    facts.device = cpu_device;
    other.write(facts_file, run_facts_json(facts));
    const std::string on_cpu = page(read_run(other.path()), 0);
    EXPECT_FALSE(contains(on_cpu, "measured peak"));
    EXPECT_CONTAINS(on_cpu, ", on CPU</p>");
}

}  // namespace
}  // namespace unsloth::report
