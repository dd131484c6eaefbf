// What a run may log, and what a file may hold that is no run's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "report/report_support.h"

namespace unsloth::report {
namespace {

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
                const RunFolder folder;
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
    const RunFolder folder;
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
    const RunFolder folder;
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

}  // namespace
}  // namespace unsloth::report
