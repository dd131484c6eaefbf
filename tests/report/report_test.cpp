// Runs' folders read, and shown as a page, on a terminal and as TensorBoard's events.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/report/event_file.h"
#include "unsloth/report/hardware_rate.h"
#include "unsloth/report/page.h"
#include "unsloth/report/plot.h"

namespace unsloth::report {
namespace {

namespace fs = std::filesystem;

class Folder : public test::ScratchFolder {
  public:
    void append(const std::string& text) const { std::ofstream(path() / "metrics.jsonl", std::ios::app) << text; }
};

std::string step_line(int step, double loss) {
    return nlohmann::json{{"step", step},          {"epoch", step / 10.0},
                          {"loss", loss},          {"grad_norm", 0.5},
                          {"learning_rate", 1e-4}, {"tokens", 1000},
                          {"trained_tokens", 800}, {"tokens_per_second", 2000.0 + step},
                          {"step_ms", 500.0},      {"memory_gib", 10.5}}
               .dump() +
           "\n";
}

/// A run of 100 steps whose loss falls, with one spike at step 50.
Folder& example(Folder& folder) {
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

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}
#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(contains(text, part)) << (part) << " is not in\n" << (text)

TEST(RunReader, ReadsRowsAsTheyComeAndNoHalfOnes) {
    const Folder folder;
    folder.append(step_line(1, 3) + step_line(2, 2).substr(0, 30));
    RunReader reader(folder.path());
    ASSERT_EQ(reader.run().steps.size(), 1u);
    EXPECT_FALSE(reader.update());
    folder.append(step_line(2, 2).substr(30) + "not json\n{\"step\": 3, \"loss\": null}\n");
    EXPECT_TRUE(reader.update());
    ASSERT_EQ(reader.run().steps.size(), 3u);
    EXPECT_EQ(reader.run().steps[1].loss, 2);
    EXPECT_TRUE(std::isnan(reader.run().steps[2].loss));
    folder.append(R"({"event": "summary", "exit_reason": "finished", "seconds": 61.5})"
                  "\n");
    reader.update();
    ASSERT_TRUE(reader.run().ending);
    EXPECT_EQ(reader.run().ending->exit_reason, "finished");
}

TEST(RunReader, ARunThatGoesOnFromACheckpointIsReadAnew) {
    const Folder folder;
    folder.append(step_line(1, 3) + step_line(2, 2) + step_line(3, 1));
    RunReader reader(folder.path());
    ASSERT_EQ(reader.run().steps.size(), 3u);
    folder.write("other", step_line(1, 3) + step_line(2, 7));
    std::filesystem::rename(folder.path() / "other", folder.path() / "metrics.jsonl");
    reader.update();
    ASSERT_EQ(reader.run().steps.size(), 2u);
    EXPECT_EQ(reader.run().steps[1].loss, 7);
}

TEST(RunReader, WhatIsNoRunIsRefused) {
    const Folder folder;
    EXPECT_THROW(RunReader(folder.path()), Error);
    EXPECT_THROW(RunReader(folder.path() / "absent"), Error);
}

TEST(RunReader, KnowsHowMuchIsLeft) {
    Folder folder;
    const FolderLock running(folder.path());
    report::Run run = read_run(example(folder).path());
    EXPECT_EQ(run.total_steps, 200);
    EXPECT_DOUBLE_EQ(run.share(), 0.5);
    EXPECT_DOUBLE_EQ(run.seconds_left(), 50);
    EXPECT_DOUBLE_EQ(run.planned_gib, 12);
    EXPECT_EQ(run.row_tokens, (std::vector<int64_t>{1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1}));
    run.total_steps = 0;
    EXPECT_DOUBLE_EQ(run.share(), 0.5);  // by max_steps
    run.config = R"({"training": {"max_steps": -1, "num_train_epochs": 40}})";
    EXPECT_DOUBLE_EQ(run.share(), 0.25);
    run.config.clear();
    EXPECT_TRUE(std::isnan(run.share()));
}

TEST(Series, ThinningKeepsSpikes) {
    Points points;
    for (int i = 0; i < 10000; ++i) points.emplace_back(i, i == 5000 ? 9.0 : i == 5001 ? -3.0 : 1.0);
    const Points few = thinned(points, 100);
    EXPECT_LE(few.size(), 100u);
    EXPECT_NE(std::find(few.begin(), few.end(), std::pair(5000.0, 9.0)), few.end());
    EXPECT_NE(std::find(few.begin(), few.end(), std::pair(5001.0, -3.0)), few.end());
    EXPECT_TRUE(std::is_sorted(few.begin(), few.end(), [](auto& a, auto& b) { return a.first < b.first; }));
}

TEST(Series, SmoothingIsAMeanThatBeginsAtTheFirstValue) {
    EXPECT_EQ(smoothed({{1, 4}, {2, 4}, {3, 4}}).back(), std::pair(3.0, 4.0));
    Points points;
    for (int i = 0; i < 1000; ++i) points.emplace_back(i, i % 2);
    EXPECT_NEAR(smoothed(points).back().second, 0.5, 0.02);
}

TEST(Series, TicksAreRound) {
    EXPECT_EQ(ticks({0, 10}, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(ticks({0.12, 0.31}, 4).size(), 4u);  // 0.15, 0.2, 0.25, 0.3
    EXPECT_EQ(ticks({3, 3}, 4), std::vector<double>{3});
    EXPECT_EQ(short_number(12345), "12.3k");
    EXPECT_EQ(short_number(2e-4), "0.0002");
}

// What a run may log, and what a file may hold that is no run's.
const std::map<std::string, std::vector<double>> nasty_series = {
    {"one value", {2.5}},
    {"equal values", {2.5, 2.5, 2.5}},
    {"the last bit", {1.0, 1.0000000000000002}},
    {"the last bit, below 0", {-1.0, -1.0000000000000002}},
    {"zeros", {0, -0.0, 0}},
    {"denormals", {5e-324, 1e-323, 4.9e-320}},
    {"zero and a denormal", {0, 5e-324}},
    {"tiny", {1e-300, 2e-300}},
    {"an overflowing range", {-1e308, 1e308}},
    {"the greatest", {std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}},
    {"the whole range", {std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max(), 0}},
    {"all sizes", {1e-308, 1, 1e308}},
    {"neighbours of a great number", {1e15, 1e15 + 0.125}},
    {"none that is finite", {NAN, INFINITY, -INFINITY}},
    {"some that are not finite", {NAN, 1, INFINITY, 2, -INFINITY}}};

/// That fill most_points and the smoothed curve, too.
std::vector<double> many_of(const std::vector<double>& values) {
    std::vector<double> many;
    while (many.size() < 700) many.insert(many.end(), values.begin(), values.end());
    return many;
}

/// Rows of which every figure is the value; JSON writes null for what is not finite. By the steps' kind: in turn,
/// great ones, and back.
std::string nasty_rows(const std::vector<double>& values, int steps) {
    std::string rows;
    for (std::size_t i = 0; i < values.size(); ++i) {
        nlohmann::json row{{"step", steps == 0   ? static_cast<double>(i)
                                    : steps == 1 ? 8e15 + static_cast<double>(i)
                                                 : static_cast<double>(values.size() - i) * 1e9}};
        for (const char* key : {"epoch", "tokens", "trained_tokens", "grad_norm/layers.0", "grad_norm/head"})
            row[key] = values[i];
        for (const Curve& curve : curves()) row[curve.key] = values[i];
        rows += row.dump() + "\n";
        row["eval_loss"] = values[i];
        row["eval_tokens"] = 1;
        for (const Curve& curve : curves()) row[std::string("eval_") + curve.key] = values[i];
        rows += row.dump() + "\n";
    }
    return rows;
}

/// Numbers in the attributes that place an element of a drawing.
std::vector<double> places_of(const std::string& svg, const char* attribute) {
    std::vector<double> places;
    const std::string begin = std::string(" ") + attribute + "=\"";
    for (std::size_t at = 0; (at = svg.find(begin, at)) != std::string::npos;) {
        at += begin.size();
        const std::string text = svg.substr(at, svg.find('"', at) - at);
        for (std::size_t place = 0; (place = text.find_first_of("-.0123456789", place)) != std::string::npos;) {
            std::size_t length = 0;
            places.push_back(std::stod(text.substr(place), &length));
            place += length;
        }
    }
    return places;
}

void expect_drawn_within(const std::string& svg, const std::string& what) {
    for (const char* attribute : {"points", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "d"})
        for (const double place : places_of(svg, attribute)) {
            ASSERT_GE(place, 0) << what << " " << attribute;
            ASSERT_LE(place, 2000) << what << " " << attribute;
        }
}

std::string lower(std::string text) {
    for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return text;
}

/// Words of a text that C writes for numbers which are none.
bool names_no_number(const std::string& text) {
    const std::string words = lower(text);
    for (const char* word : {"nan", "inf"})
        for (std::size_t at = 0; (at = words.find(word, at)) != std::string::npos; at += 3) {
            const auto letter = [&](std::size_t i) { return i < words.size() && std::isalpha(words[i]) != 0; };
            if (!(at > 0 && letter(at - 1)) && !letter(at + 3)) return true;
        }
    return false;
}

TEST(NastyValues, AreDrawnWithinTheirChartsAndTheTerminal) {
    for (const auto& [name, values] : nasty_series)
        for (const bool many : {false, true})
            for (int steps = 0; steps < (many ? 1 : 3); ++steps) {
                const std::string what = name + (many ? ", many" : "") + ", steps " + std::to_string(steps);
                const Folder folder;
                folder.append(nasty_rows(many ? many_of(values) : values, steps));
                report::Run run = read_run(folder.path());
                run.ending.reset();
                const std::string html = page(run, 0);
                expect_drawn_within(html, what);
                EXPECT_FALSE(names_no_number(html)) << what;
                EXPECT_LT(html.size(), 3u << 19) << what;
                for (const int columns : {40, 80}) {
                    const std::string view =
                        plot("x", {{points_of(run, &StepRow::loss)}, {eval_points(run), true}}, columns, 12, false);
                    EXPECT_FALSE(names_no_number(view)) << what << view;
                    EXPECT_LE(std::count(view.begin(), view.end(), '\n'), 13) << what;
                    for (std::size_t begin = 0, end; (end = view.find('\n', begin)) != std::string::npos;
                         begin = end + 1)
                        EXPECT_LE(std::count_if(view.begin() + static_cast<std::ptrdiff_t>(begin),
                                                view.begin() + static_cast<std::ptrdiff_t>(end),
                                                [](char c) { return (c & 0xC0) != 0x80; }),
                                  columns)
                            << what << view;
                }
                EXPECT_FALSE(names_no_number(run_view(run, 80, 40, true))) << what;
                EXPECT_FALSE(names_no_number(comparison({run, run}, 80, true))) << what;
            }
}

TEST(NastyValues, TicksAreFewAndWithinTheAxis) {
    for (const auto& [name, values] : nasty_series)
        for (const bool widened : {false, true})
            for (const int count : {1, 5}) {
                Axis axis;
                for (const double value : values) axis.include(value);
                if (axis.empty()) continue;
                if (widened) axis.widen(0.05);
                const std::vector<double> found = ticks(axis, count);
                EXPECT_LE(found.size(), static_cast<std::size_t>(count + 1)) << name;
                EXPECT_FALSE(found.empty()) << name;
                EXPECT_EQ(std::adjacent_find(found.begin(), found.end(), std::greater_equal<>()), found.end()) << name;
                for (const double value : found) EXPECT_TRUE(value >= axis.low && value <= axis.high) << name << value;
                if (!widened) continue;
                EXPECT_TRUE(std::isfinite(axis.low) && std::isfinite(axis.high)) << name;
                for (const double value : values)
                    EXPECT_TRUE(!std::isfinite(value) || (axis.share_of(value) >= 0 && axis.share_of(value) <= 1))
                        << name << value;
                EXPECT_GE(found.size(), count > 1 ? 2u : 1u) << name;
            }
}

TEST(NastyValues, InARunsFacts) {
    const Folder folder;
    folder.append(step_line(-5, 2));
    folder.write("run_config.json", R"({"training": {"max_steps": 1e-300, "num_train_epochs": 1e-300}})");
    for (const char* number : {"0", "-1", "1e308", "9223372036854775807", "18446744073709551615", "null", "\"x\""}) {
        folder.write(facts_file, cat(R"({"total_steps": )", number, R"(, "planned_bytes": 1, "planned_groups": {"a": )",
                                     number, R"(, "b": 0}, "row_tokens": [)", number, ", 1, ", number, "]}"));
        const report::Run run = read_run(folder.path());
        const std::string html = page(run, 5);
        expect_drawn_within(html, number);
        EXPECT_FALSE(names_no_number(html)) << number;
        EXPECT_TRUE(run.share() >= 0 && run.share() <= 1) << number;
    }
}

TEST(NastyValues, InALineOfMetrics) {
    const Folder folder;
    folder.append(R"({"step": "3", "loss": "nan", "step_ms": [1], "grad_norm/head": "x"}
{"loss": NaN}
{"loss": 1e999}
{"step": 1e300, "loss": {}, "tokens": 1e300}
{"loss": 2, "step_ms": -1e308}
{"event": "summary", "seconds": 1e308, "best_step": 1e300}
[1, 2]
7
)");
    const report::Run run = read_run(folder.path());
    ASSERT_EQ(run.steps.size(), 3u);
    EXPECT_TRUE(std::isnan(run.steps[0].loss) && std::isnan(run.steps[1].loss));
    EXPECT_EQ(run.steps[1].step, 0);
    EXPECT_EQ(run.steps[2].loss, 2);
    for (const std::string& text : {page(run, 0), run_view(run, 80, 40, false), comparison({run}, 80, false)})
        EXPECT_FALSE(names_no_number(text)) << text;
}

TEST(Page, HoldsAllThatItShowsAndNothingFromElsewhere) {
    Folder folder;
    const FolderLock running(folder.path());
    const std::string html = page(read_run(example(folder).path()), 5);
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
    EXPECT_CONTAINS(html, "in all 12.00 GiB; 1.00 GiB serve two purposes in turns");
    EXPECT_FALSE(contains(html, "http://") || contains(html, "https://") || contains(html, "<link") ||
                 contains(html, " src=") || contains(html, "nan") || contains(html, "inf"));
}

TEST(Page, SaysThatARunWasKilled) {
    Folder folder;
    const fs::path path = example(folder).path();
    fs::last_write_time(path / "metrics.jsonl", fs::file_time_type::clock::now() - std::chrono::hours(1));
    const report::Run killed = read_run(path);
    EXPECT_TRUE(killed.killed());
    EXPECT_FALSE(std::isfinite(killed.seconds_left()));
    for (const std::string& text : {page(killed, 5), run_view(killed, 80, 40, false),
                                    comparison(std::vector<report::Run>{killed, killed}, 80, false)}) {
        EXPECT_CONTAINS(text, "stopped without finishing at step 100 (last sign of life 20");
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
        const Folder folder;
        std::string rows;
        for (int step = 1; step <= steps; ++step) rows += step_line(step, step % 2 == 0 ? 2.0 : 3.0);
        folder.append(rows);
        const std::string html = page(read_run(folder.path()), 0);
        EXPECT_EQ(contains(html, "bold: mean of the steps before"), steps == 100) << steps;
        EXPECT_EQ(contains(html, "<polyline class=\"raw\""), steps == 100) << steps;
    }
}

TEST(Page, DrawsTheObjectivesOwnFigures) {
    Folder folder;
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
    Folder folder;
    EXPECT_FALSE(contains(page(read_run(example(folder).path()), 0), "layer_norms"));
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
    Folder folder;
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
    Folder folder;
    example(folder);
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
    Folder folder;
    example(folder);
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
    Folder folder;
    EXPECT_FALSE(contains(page(read_run(example(folder).path()), 0), "Training row"));
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
    Folder folder;
    example(folder);
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
    Folder folder;
    EXPECT_FALSE(contains(page(read_run(example(folder).path()), 0), "MFU"));
    folder.append(R"({"step": 101, "loss": 2, "mfu": 0.425})"
                  "\n");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "<b>42.5 %</b><span>of the GPU's rate (MFU)");
    EXPECT_CONTAINS(html, "Share of the GPU's rate (MFU)");
}

TEST(HardwareRate, OfCardsByTheDriversNames) {
    EXPECT_EQ(dense_bf16_rate("NVIDIA H200"), 989e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA H100 80GB HBM3"), 989e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA H100 PCIe"), 756e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA A100-SXM4-80GB"), 312e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA A10G"), 70e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA GeForce RTX 4090"), 165.2e12);
    for (const char* unknown :
         {"", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce GTX 1080"})
        EXPECT_EQ(dense_bf16_rate(unknown), 0) << unknown;
}

TEST(Page, OfARunThatEnded) {
    Folder folder;
    example(folder).append(R"({"event": "summary", "exit_reason": "error", "error": "step 101: <loss> is not finite"})"
                           "\n");
    const std::string html = page(read_run(folder.path()), 5);
    EXPECT_FALSE(contains(html, "http-equiv"));
    EXPECT_CONTAINS(html, "step 101: &lt;loss&gt; is not finite");
    const Folder empty;
    empty.append("");
    EXPECT_CONTAINS(page(read_run(empty.path()), 5), "stopped without finishing before a step was logged");
    const FolderLock running(empty.path());
    EXPECT_CONTAINS(page(read_run(empty.path()), 5), "no step yet");
}

TEST(Page, PictureOfLossAndMemoryAsAFile) {
    Folder folder;
    const std::string svg = picture(read_run(example(folder).path()));
    EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), 0u);
    EXPECT_CONTAINS(svg, "prefers-color-scheme: dark");
    EXPECT_CONTAINS(svg, "base weights");
    EXPECT_CONTAINS(svg, "class=\"main\"");
    EXPECT_FALSE(contains(svg, "Learning rate") || contains(svg, "nan"));
    const Folder empty;
    empty.append("");
    EXPECT_THROW(picture(read_run(empty.path())), Error);
}

TEST(Page, TicksOfANarrowRangeDiffer) {
    Folder folder;
    folder.append(R"({"step": 1, "loss": 1, "tokens_per_second": 18500})"
                  "\n"
                  R"({"step": 2, "loss": 1, "tokens_per_second": 18512})"
                  "\n");
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, ">18505</text>");  // three digits say 18.5k of all
    EXPECT_FALSE(contains(html, ">18.5k</text>"));
}

TEST(Page, NamesGreatStepsInFull) {
    const Folder folder;
    folder.append(step_line(1234567, 2) + step_line(1234600, 3));
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, "data-from=\"1234567\" data-to=\"1234600\"");
    EXPECT_CONTAINS(html, ">1234580</text>");
    EXPECT_FALSE(contains(html, ">1.23M</text>"));
}

TEST(Page, GroupsThatDoNotFitAreOneLine) {
    Folder folder;
    RunFacts facts{200, 100, {}, {}};
    for (int i = 1; i <= 9; ++i) facts.planned_groups.emplace_back("group " + std::to_string(i), i << 20);
    example(folder).write(facts_file, run_facts_json(facts));
    const std::string html = page(read_run(folder.path()), 0);
    EXPECT_CONTAINS(html, ">group 4</text>");
    EXPECT_CONTAINS(html, ">others</text>");
    EXPECT_CONTAINS(html, ">6.0 MiB</text>");  // 1 + 2 + 3
    EXPECT_FALSE(contains(html, ">group 3</text>"));
}

/// Of a GPU whose plan foretold 2500 tokens per second.
Folder& example_on_gpu(Folder& folder) {
    example(folder);
    RunFacts facts = read_run_facts(folder.path());
    facts.planned_rate = 2500, facts.device = "A <card>";
    folder.write(facts_file, run_facts_json(facts));
    return folder;
}

TEST(Page, ComparesAGpuWithItsPlan) {
    Folder folder;
    const std::string html = page(read_run(example_on_gpu(folder).path()), 0);
    for (const char* part :
         {"<b>2500</b><span>planned, with full rows</span>", "<b>10.5 GiB</b><span>peak GPU memory</span>",
          "plan, with full rows", ">measured peak</text>", ">10.50 GiB</text>", ", on A &lt;card&gt;</p>"})
        EXPECT_CONTAINS(html, part);
    Folder other;
    RunFacts facts = read_run_facts(example(other).path());
    facts.device = cpu_device;
    other.write(facts_file, run_facts_json(facts));
    const std::string on_cpu = page(read_run(other.path()), 0);
    EXPECT_FALSE(contains(on_cpu, "measured peak"));
    EXPECT_CONTAINS(on_cpu, ", on CPU</p>");
}

TEST(Plot, ShowsThePlanAndSamplesWhereThereIsRoom) {
    Folder folder;
    const FolderLock running(folder.path());
    example_on_gpu(folder).write(
        samples_file,
        R"({"step": 50, "prompt": "old", "answer": "gone"})"
        "\n"
        R"({"step": 100, "prompt": "What kind\nof clause is this? Say it in a word.", "answer": "說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說"})"
        "\n");
    const report::Run run = read_run(folder.path());
    for (const int columns : {40, 60, 80, 200})
        for (const int rows : {23, 40, 60}) {
            const std::string view = run_view(run, columns, rows, false);
            EXPECT_LE(std::count(view.begin(), view.end(), '\n'), rows) << view;
            std::istringstream lines(view);
            for (std::string line; std::getline(lines, line);) {
                int taken = 0;
                for (const char c : line)
                    taken += (c & 0xC0) == 0x80 ? 0 : static_cast<unsigned char>(c) == 0xE8 ? 2 : 1;
                EXPECT_LE(taken, columns) << line;
            }
            EXPECT_CONTAINS(view, "2100 tok/s (plan 2500)");
            EXPECT_TRUE(rows == 23 || contains(view, "memory: peak 10.5 GiB, planned 12 GiB")) << view;
            EXPECT_CONTAINS(view, "What kind of ");
            EXPECT_FALSE(contains(view, "gone"));
        }
    EXPECT_CONTAINS(run_view(run, 80, 40, false), "12 GiB  base weights 9.00 GiB\n  layer inputs 4.00 GiB\n");
}

TEST(Plot, DrawsWithinItsFrame) {
    Folder folder;
    const FolderLock running(folder.path());
    const report::Run run = read_run(example(folder).path());
    const std::string view = run_view(run, 80, 40, false);
    EXPECT_CONTAINS(view, "step 100/200  loss 2.01  eval loss 1.75  2100 tok/s  10.5 GiB  left 00:50");
    EXPECT_CONTAINS(view, "step 100");
    EXPECT_FALSE(contains(view, "\033"));
    EXPECT_CONTAINS(run_view(run, 80, 40, true), "\033[36m");
    std::size_t lines = 0, start = 0;
    for (std::size_t end; (end = view.find('\n', start)) != std::string::npos; start = end + 1, ++lines) {
        const std::string line = view.substr(start, end - start);
        const auto letters = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
        EXPECT_LE(letters, 80) << line;
    }
    EXPECT_LE(lines, 40u);
    EXPECT_CONTAINS(plot("x", {}, 40, 8, false), "no values");
    EXPECT_CONTAINS(plot("x", {{{{1, 2}}}}, 40, 8, false), "step 2");
}

TEST(Comparison, TellsFiguresAndTheOptionsThatDiffer) {
    Folder one, two;
    example(one), example(two);
    two.write("run_config.json", R"({"model": {"path": "<base> & co"}, "training": {"max_steps": 200, "seed": 1}})");
    const std::string text = comparison({read_run(one.path()), read_run(two.path())}, 100, false);
    EXPECT_CONTAINS(text, "training.seed: - | 1");
    EXPECT_FALSE(contains(text, "model.path"));
    EXPECT_CONTAINS(text, one.path().filename().string());
    EXPECT_CONTAINS(text, "1.75");
}

TEST(EventFile, ChecksumsAreCastagnolis) {
    EXPECT_EQ(crc32c("123456789"), 0xE3069283u);  // RFC 3720, B.4
    EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
    EXPECT_EQ(crc32c(""), 0u);
}

std::string hex(const std::string& bytes) {
    std::string text;
    char two[3];
    for (const char byte : bytes) {
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
        text += two;
    }
    return text;
}

// The bytes that TensorFlow's protocol buffers have for these values.
TEST(EventFile, EventsAreTensorFlows) {
    EXPECT_EQ(hex(version_event(1.0)), "09000000000000f03f1a0d627261696e2e4576656e743a32");
    EXPECT_EQ(hex(scalars_event(1.0, 300, {{"a", 0.5}})), "09000000000000f03f10ac022a0a0a080a0161150000003f");
    const std::string frame = framed_record("x");
    EXPECT_EQ(frame.size(), 8u + 4 + 1 + 4);
    EXPECT_EQ(hex(frame.substr(0, 8)), "0100000000000000");
}

}  // namespace
}  // namespace unsloth::report
