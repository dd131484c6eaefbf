#include "unsloth/report/page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "report/charts.h"
#include "report/page_style.h"
#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/version.h"
#include "unsloth/report/series.h"
#include "unsloth/report/sweep.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;

std::string tile_number(double value) {
    return std::isfinite(value) ? short_number(value) : "–";
}

std::string tile(const std::string& value, const std::string& name) {
    return cat("<div class=\"tile\"><b>", escaped(value), "</b><span>", escaped(name), "</span></div>\n");
}

/// The same in HTML and in SVG, but for the element.
std::string legend(const Chart& chart, const char* element) {
    std::string text;
    for (const LegendPart& part : chart.legend) {
        if (*part.key) text += cat(" <", element, " class=\"", part.key, "\">●</", element, "> ");
        text += escaped(part.text);
    }
    return text;
}

std::string card(const Chart& chart) {
    return cat("<div class=\"card\"><h2>", escaped(chart.title), "</h2>\n<svg id=\"", chart.id, "\" viewBox=\"0 0 ",
               chart_width, " ", chart_height, "\" role=\"img\" aria-label=\"", escaped(chart.title), "\"",
               chart.attributes, ">", chart.body, "</svg>\n<div class=\"legend\">", legend(chart, "span"),
               "</div></div>\n");
}

std::string state_of(const Run& run) {
    if (run.killed()) return cat("<span class=\"failed\">", escaped(run.killed_text()), "</span>");
    if (!run.ending)
        return std::isfinite(run.seconds_left()) ? cat("running, ", duration_text(run.seconds_left()), " left")
               : run.steps.empty()               ? "no step yet"
                                                 : "running, or killed";
    const Ending& end = *run.ending;
    const bool finished = end.exit_reason == "finished";
    std::string text =
        cat("<span class=\"", finished ? "finished" : "failed", "\">", escaped(end.exit_reason), "</span>");
    if (std::isfinite(end.seconds)) text += cat(" after ", duration_text(end.seconds));
    if (!end.error.empty()) text += cat("<br>", escaped(end.error));
    return text;
}

std::string tiles(const Run& run) {
    if (run.steps.empty()) return "";
    const StepRow& last = run.steps.back();
    std::string text = tile(cat(last.step, run.total_steps > 0 ? cat(" / ", run.total_steps) : ""), "step");
    text += tile(tile_number(last.epoch), "epoch") + tile(tile_number(last.loss), "loss");
    if (!run.evals.empty()) {
        const auto [name, value] = judged_by(run.evals.back());
        text += tile(tile_number(value), "evaluation " + name);
    }
    text += tile(tile_number(last.tokens_per_second), "tokens per second");
    if (std::isfinite(run.planned_rate)) text += tile(tile_number(run.planned_rate), "planned, with full rows");
    if (std::isfinite(last.mfu)) text += tile(cat(tile_number(100 * last.mfu), " %"), "of the GPU's rate (MFU)");
    const double peak = run.peak_gib();
    text +=
        std::isfinite(peak) ? tile(memory_text(peak), "peak GPU memory") : tile(memory_text(last.memory_gib), "memory");
    return std::isfinite(run.planned_gib) ? text + tile(memory_text(run.planned_gib), "planned memory") : text;
}

/// A run's folder may be anyone's: nothing but a PNG file within the page becomes a picture.
bool is_thumbnail(const std::string& url) {
    constexpr std::string_view png = "data:image/png;base64,";
    constexpr std::size_t most_bytes = 64 << 10;
    return url.size() <= most_bytes && url.starts_with(png) &&
           url.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=", png.size()) ==
               std::string::npos;
}

/// The images of a prompt, of the first row that has them.
std::string thumbnails(const Run& run, const SampleRow& of) {
    constexpr std::size_t most = 8;
    const auto has_them = [&](const SampleRow& row) { return row.is_of(of) && !row.images.empty(); };
    const auto row = std::find_if(run.samples.begin(), run.samples.end(), has_them);
    std::string text;
    if (row == run.samples.end()) return text;
    for (std::size_t i = 0; i < std::min(most, row->images.size()); ++i)
        if (is_thumbnail(row->images[i]))
            text += cat("<img alt=\"image ", i + 1, " of the prompt\" src=\"", row->images[i], "\">\n");
    return text;
}

/// What the run answered to each prompt, from its last step back.
std::string samples(const Run& run) {
    std::vector<const SampleRow*> prompts;
    for (const SampleRow& row : run.samples)
        if (std::none_of(prompts.begin(), prompts.end(), [&](const SampleRow* one) { return one->is_of(row); }))
            prompts.push_back(&row);
    std::string text;
    for (const SampleRow* const prompt : prompts) {
        text += cat("<details class=\"card\" open><summary>", escaped(prompt->prompt), "</summary>",
                    thumbnails(run, *prompt), "<table class=\"answers\">\n");
        for (auto row = run.samples.rbegin(); row != run.samples.rend(); ++row)
            if (row->is_of(*prompt))
                text += cat("<tr><td>step ", row->step, "</td><td>", escaped(visible(row->answer)), "</td></tr>\n");
        text += "</table></details>\n";
    }
    return text;
}

/// Training rows with images, as the model sees them.
std::string pictured_rows(const Run& run) {
    std::string text;
    for (const PicturedRow& row : run.pictured) {
        text += cat("<details class=\"card\"", text.empty() ? " open" : "", "><summary>Training row ", row.row, ": ",
                    row.tokens, " tokens</summary>\n");
        for (std::size_t i = 0; i < row.images.size(); ++i) {
            const auto& [begin, end, url] = row.images[i];
            text += cat("<figure>", is_thumbnail(url) ? cat("<img alt=\"\" src=\"", url, "\">") : "",
                        "<figcaption>image ", i + 1, ": ", end - begin, end - begin == 1 ? " token" : " tokens",
                        " from token ", begin, "</figcaption></figure>\n");
        }
        text += cat("<pre>", escaped(row.text), "</pre></details>\n");
    }
    return text;
}

/// Of each of the last steps some completions, from the last step back.
std::string completions(const Run& run) {
    constexpr int most_steps = 20;
    std::string text;
    int steps = 0;
    for (auto end = run.completions.end(); end != run.completions.begin() && steps < most_steps; ++steps) {
        auto begin = end - 1;
        while (begin != run.completions.begin() && (begin - 1)->step == begin->step) --begin;
        text += cat("<details class=\"card\"", steps == 0 ? " open" : "", "><summary>Completions of step ", begin->step,
                    "</summary><table class=\"answers\">\n");
        for (auto row = begin; row != end; ++row)
            text += cat("<tr><td>", escaped(row->scores), "</td><td>", escaped(row->prompt), "<b>",
                        escaped(visible(row->completion)), "</b></td></tr>\n");
        text += "</table></details>\n";
        end = begin;
    }
    return text;
}

std::string configuration(const Run& run) {
    const Json config = Json::parse(run.config, nullptr, false);
    if (!config.is_object()) return "";
    std::string text = "<details class=\"card\"><summary>Configuration</summary><table>\n";
    for (const auto& [section, options] : config.items()) {
        if (!options.is_object()) continue;
        text += cat("<tr><th colspan=\"2\">", escaped(section), "</th></tr>\n");
        for (const auto& [key, value] : options.items())
            text += cat("<tr><td>", escaped(key), "</td><td>",
                        escaped(value.is_string() ? value.get<std::string>() : value.dump()), "</td></tr>\n");
    }
    return text + "</table></details>\n";
}

/// The trials of the sweep that the run won.
std::string sweep_of(const Run& run) {
    const std::optional<Sweep> sweep = read_sweep(run.folder);
    if (!sweep) return "";
    return cat("<details class=\"card\" open><summary>Sweep: ", escaped(sweep->metric), " of its trials</summary>\n",
               sweep_table_html(*sweep), "</details>\n");
}

}  // namespace

std::string page(const Run& run, int refresh_seconds) {
    const bool live = !run.ending && !run.killed() && refresh_seconds > 0;
    const double share = run.ending && run.ending->exit_reason == "finished" ? 1 : run.share();
    std::string text = cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n",
                           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    if (live) text += cat("<meta http-equiv=\"refresh\" content=\"", refresh_seconds, "\">\n");
    text += cat("<title>", escaped(run.name()), "</title>\n<style>", chart_style, page_style,
                "</style></head>\n<body><main>\n<h1>", escaped(run.name()), "</h1>\n<p class=\"state\">", state_of(run),
                run.device.empty() ? "" : cat(", on ", escaped(run.device)), "</p>\n");
    if (std::isfinite(share))
        text += cat("<div class=\"bar\"><div style=\"width: ", std::lround(100 * share), "%\"></div></div>\n");
    text += cat("<div class=\"tiles\">\n", tiles(run), "</div>\n<div class=\"charts\">\n");
    for (const Chart& chart : charts_of(run)) text += card(chart);
    if (const std::optional<Chart> trials = trials_chart(run)) text += card(*trials);
    return cat(text, "</div>\n", sweep_of(run), pictured_rows(run), samples(run), completions(run), configuration(run),
               "<footer>unsloth-train ", version, "</footer>\n</main>\n<script>", page_script,
               "</script></body></html>\n");
}

std::string picture(const Run& run) {
    constexpr double gap = 40, margin = 16, head = 44, foot = 30;
    std::string text;
    double x = margin;
    for (const Chart& chart : charts_of(run)) {
        if (chart.id != "loss" && chart.id != "planned_memory") continue;
        text += cat("<text class=\"title\" x=\"", x, "\" y=\"26\">", escaped(chart.title), "</text>\n<svg x=\"", x,
                    "\" y=\"", head, "\" width=\"", chart_width, "\" height=\"", chart_height, "\">", chart.body,
                    "</svg>\n<text x=\"", x, "\" y=\"", head + chart_height + 18, "\">", legend(chart, "tspan"),
                    "</text>\n");
        x += chart_width + gap;
    }
    if (text.empty()) throw Error("run.no-metrics", cat(run.folder.string(), " has no logged step to draw"), "");
    const double width = x - gap + margin, height = head + chart_height + foot;
    return cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height, "\" viewBox=\"0 0 ",
               width, " ", height, "\" role=\"img\" aria-label=\"Loss and memory of a run\">\n<style>", chart_style,
               "</style>\n<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"", width - 1, "\" height=\"", height - 1,
               "\" rx=\"8\"/>\n", text, "</svg>\n");
}

}  // namespace unsloth::report
