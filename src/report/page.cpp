#include "unsloth/report/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "report/page_style.h"
#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/utf8.h"
#include "unsloth/core/version.h"
#include "unsloth/report/series.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_points = 600;  // of a curve: about a point a pixel
constexpr double width = 480, height = 220, left = 52, right = 470, top = 10, bottom = 192;

std::string escaped(const std::string& text) {
    std::string result;
    for (const char letter : repair_utf8(text)) {
        switch (letter) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += letter;
        }
    }
    return result;
}

std::string fixed(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
}

std::string shown(double value) {
    return std::isfinite(value) ? short_number(value) : "–";
}

std::string tile(const std::string& value, const std::string& name) {
    return cat("<div class=\"tile\"><b>", escaped(value), "</b><span>", escaped(name), "</span></div>\n");
}

/// The part of a plane that a chart shows.
class Frame {
  public:
    Frame(const Points& points, const Points& more, double level) {
        for (const Points* list : {&points, &more})
            for (const auto& [step, value] : *list) {
                from_ = std::min(from_, step), to_ = std::max(to_, step);
                low_ = std::min(low_, value), high_ = std::max(high_, value);
            }
        if (std::isfinite(level)) low_ = std::min(low_, level), high_ = std::max(high_, level);
        if (to_ == from_) to_ = from_ + 1;
        const double margin = high_ > low_ ? 0.05 * (high_ - low_) : std::max(std::abs(low_) * 0.1, 1e-12);
        low_ = low_ >= 0 ? std::max(0.0, low_ - margin) : low_ - margin;
        high_ += margin;
    }
    double x(double step) const { return left + (step - from_) / (to_ - from_) * (right - left); }
    double y(double value) const { return bottom - (value - low_) / (high_ - low_) * (bottom - top); }
    double from() const { return from_; }
    double to() const { return to_; }

    std::string grid() const {
        std::string text;
        for (const double value : ticks(low_, high_, 4))
            text += cat("<line class=\"grid\" x1=\"", fixed(left), "\" x2=\"", fixed(right), "\" y1=\"",
                        fixed(y(value)), "\" y2=\"", fixed(y(value)), "\"/><text x=\"", fixed(left - 6), "\" y=\"",
                        fixed(y(value) + 4), "\" text-anchor=\"end\">", short_number(value), "</text>");
        for (const double step : ticks(from_, to_, 5))
            text += cat("<text x=\"", fixed(x(step)), "\" y=\"", fixed(bottom + 16), "\" text-anchor=\"middle\">",
                        short_number(step), "</text>");
        return text;
    }
    std::string polyline(const Points& points, const char* kind) const {
        std::string text = cat("<polyline class=\"", kind, "\" points=\"");
        for (const auto& [step, value] : points) text += cat(fixed(x(step)), ",", fixed(y(value)), " ");
        return text + "\"/>";
    }

  private:
    double from_ = INFINITY, to_ = -INFINITY, low_ = INFINITY, high_ = -INFINITY;
};

std::string data_of(const Points& points) {
    Json list = Json::array();
    for (const auto& [step, value] : points) {
        char text[32];
        std::snprintf(text, sizeof text, "%.6g", value);
        list.push_back({static_cast<int64_t>(step), Json::parse(text)});
    }
    return list.dump();
}

/// A curve of a run. `level`: a line across, such as the plan's memory; `absent`: none.
std::string chart(const Curve& curve, const Points& all, const Points& evals, double level, const std::string& legend) {
    const Points points = thinned(all, most_points);
    const Frame frame(points, evals, level);
    std::string text =
        cat("<div class=\"card\"><h2>", curve.title, *curve.unit ? cat(" (", curve.unit, ")") : "", "</h2>\n<svg id=\"",
            curve.key, "\" viewBox=\"0 0 ", width, " ", height, "\" role=\"img\" aria-label=\"", curve.title,
            "\" data-left=\"", left, "\" data-right=\"", right, "\" data-from=\"", frame.from(), "\" data-to=\"",
            frame.to(), "\" data-points='", data_of(points), "'>", frame.grid());
    const bool noisy = curve.field == &StepRow::loss || curve.field == &StepRow::grad_norm;
    if (noisy && all.size() > 20) {
        text += frame.polyline(points, "raw") + frame.polyline(thinned(smoothed(all), most_points), "main");
    } else {
        text += frame.polyline(points, "main");
    }
    if (std::isfinite(level))
        text += cat("<line class=\"plan\" x1=\"", fixed(left), "\" x2=\"", fixed(right), "\" y1=\"",
                    fixed(frame.y(level)), "\" y2=\"", fixed(frame.y(level)), "\"/>");
    for (const auto& [step, value] : evals)
        text += cat("<circle class=\"eval\" cx=\"", fixed(frame.x(step)), "\" cy=\"", fixed(frame.y(value)),
                    "\" r=\"3.5\"/>");
    return cat(text, "<line class=\"cursor\" y1=\"", fixed(top), "\" y2=\"", fixed(bottom),
               "\"/></svg>\n<div class=\"legend\">", legend, "</div></div>\n");
}

std::string length_chart(const std::vector<int64_t>& counts) {
    std::size_t first = 0;
    while (first < counts.size() && counts[first] == 0) ++first;
    if (first == counts.size()) return "";
    const double most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
    const double step = (right - left) / static_cast<double>(counts.size() - first);
    std::string text = cat("<div class=\"card\"><h2>Tokens of a row</h2>\n<svg id=\"row_tokens\" viewBox=\"0 0 ", width,
                           " ", height, "\" role=\"img\" aria-label=\"Tokens of a row\">");
    for (std::size_t i = first; i < counts.size(); ++i) {
        const double x = left + step * static_cast<double>(i - first);
        const double tall = (bottom - top - 16) * static_cast<double>(counts[i]) / most;
        text +=
            cat("<rect class=\"column\" x=\"", fixed(x + 2), "\" width=\"", fixed(std::max(step - 4, 1.0)), "\" y=\"",
                fixed(bottom - tall), "\" height=\"", fixed(tall), "\"/><text text-anchor=\"middle\" x=\"",
                fixed(x + step / 2), "\" y=\"", fixed(bottom + 16), "\">", int64_t{1} << i, "</text>");
        if (counts[i] > 0)
            text += cat("<text text-anchor=\"middle\" x=\"", fixed(x + step / 2), "\" y=\"", fixed(bottom - tall - 4),
                        "\">", short_number(static_cast<double>(counts[i])), "</text>");
    }
    return text + "</svg>\n<div class=\"legend\">rows of up to so many tokens, and above the half</div></div>\n";
}

std::string state_of(const Run& run) {
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
    text += tile(shown(last.epoch), "epoch") + tile(shown(last.loss), "loss");
    if (!run.evals.empty()) text += tile(shown(run.evals.back().loss), "evaluation loss");
    text += tile(shown(last.tokens_per_second), "tokens per second");
    const std::string of_plan = std::isfinite(run.planned_gib) ? cat(" / ", shown(run.planned_gib)) : "";
    return text + tile(cat(shown(last.memory_gib), of_plan, " GiB"), of_plan.empty() ? "memory" : "memory / plan");
}

std::string charts(const Run& run) {
    std::string text;
    for (const Curve& curve : curves()) {
        const Points points = points_of(run, curve.field);
        if (points.empty()) continue;
        const bool loss = curve.field == &StepRow::loss, memory = curve.field == &StepRow::memory_gib;
        const Points evals = loss ? eval_points(run) : Points{};
        std::string legend = cat("last ", short_number(points.back().second));
        if (loss && points.size() > 20) legend += ", bold: smoothed";
        if (!evals.empty()) legend += " <span class=\"key second\"></span>evaluation";
        if (memory && std::isfinite(run.planned_gib)) legend += " <span class=\"key second\"></span>plan";
        text += chart(curve, points, evals, memory ? run.planned_gib : absent, legend);
    }
    return text + length_chart(run.row_tokens);
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

}  // namespace

std::string page(const Run& run, int refresh_seconds) {
    const bool live = !run.ending && refresh_seconds > 0;
    const double share = run.ending && run.ending->exit_reason == "finished" ? 1 : run.share();
    std::string text = cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n",
                           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    if (live) text += cat("<meta http-equiv=\"refresh\" content=\"", refresh_seconds, "\">\n");
    text += cat("<title>", escaped(run.name()), "</title>\n<style>", page_style, "</style></head>\n<body><main>\n<h1>",
                escaped(run.name()), "</h1>\n<p class=\"state\">", state_of(run), "</p>\n");
    if (std::isfinite(share))
        text += cat("<div class=\"bar\"><div style=\"width: ", fixed(100 * share), "%\"></div></div>\n");
    return cat(text, "<div class=\"tiles\">\n", tiles(run), "</div>\n<div class=\"charts\">\n", charts(run), "</div>\n",
               configuration(run), "<footer>unsloth-train ", version, "</footer>\n</main>\n<script>", page_script,
               "</script></body></html>\n");
}

}  // namespace unsloth::report
