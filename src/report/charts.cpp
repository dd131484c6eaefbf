#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
#include "unsloth/core/utf8.h"
#include "unsloth/report/series.h"
#include "unsloth/report/sweep.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t least_smoothed = 100;  // below, the mean is over hardly more than the points themselves
constexpr std::size_t most_points = 600;     // of a curve: more than a display has pixels for it
constexpr double left = 56, right = 344, top = 8, bottom = 176;

std::string fixed(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
}

std::string digits(double value, int count) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*g", count, value);
    return text;
}

/// In a narrow range three digits are all the same.
std::vector<std::string> tick_labels(const std::vector<double>& values) {
    const bool alike = values.size() > 1 && short_number(values[0]) == short_number(values[1]);
    std::vector<std::string> labels;
    for (const double value : values) labels.push_back(alike ? digits(value, 7) : short_number(value));
    return labels;
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
    return cat("<text x=\"", fixed(x), "\" y=\"", fixed(y), "\" text-anchor=\"", anchor, "\">", escaped(text),
               "</text>");
}

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
    return cat("<line class=\"", kind, "\" x1=\"", fixed(x1), "\" y1=\"", fixed(y1), "\" x2=\"", fixed(x2), "\" y2=\"",
               fixed(y2), "\"/>");
}

std::string box(const char* kind, double x, double y, double wide, double tall) {
    return cat("<rect class=\"", kind, "\" x=\"", fixed(x), "\" y=\"", fixed(y), "\" width=\"", fixed(wide),
               "\" height=\"", fixed(tall), "\"/>");
}

std::string cursor() {
    return cat("<line class=\"cursor\" y1=\"", fixed(top), "\" y2=\"", fixed(bottom), "\"/>");
}

/// The part of a plane that a chart shows.
class Frame {
  public:
    Frame(const Points& points, const Points& more, double level) {
        for (const Points* list : {&points, &more})
            for (const auto& [step, value] : *list) steps_.include(step), values_.include(value);
        values_.include(level);
        if (steps_.high == steps_.low) steps_.high = steps_.low + 1;
        values_.widen(0.05);
    }
    double x(double step) const { return left + steps_.share_of(step) * (right - left); }
    double y(double value) const { return bottom - values_.share_of(value) * (bottom - top); }

    std::string grid() const {
        std::string text;
        const std::vector<double> values = ticks(values_, 5);
        const std::vector<std::string> labels = tick_labels(values);
        for (std::size_t i = 0; i < values.size(); ++i)
            text += line("grid", left, y(values[i]), right, y(values[i])) +
                    label(left - 6, y(values[i]) + 4, "end", labels[i]);
        return text + step_labels();
    }
    std::string step_labels() const {
        std::string text;
        const std::vector<double> steps = ticks(steps_, 5);
        const std::vector<std::string> labels = tick_labels(steps);
        for (std::size_t i = 0; i < steps.size(); ++i) text += label(x(steps[i]), bottom + 17, "middle", labels[i]);
        return text;
    }
    std::string polyline(const Points& points, const char* kind) const {
        std::string text = cat("<polyline class=\"", kind, "\" points=\"");
        for (const auto& [step, value] : points) text += cat(fixed(x(step)), ",", fixed(y(value)), " ");
        return text + "\"/>";
    }
    std::string attributes() const {
        return cat(" data-left=\"", left, "\" data-right=\"", right, "\" data-from=\"", digits(steps_.low, 15),
                   "\" data-to=\"", digits(steps_.high, 15), "\"");
    }

  private:
    Axis steps_, values_;
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

Points times(Points points, double factor) {
    for (auto& [step, value] : points) value *= factor;
    return points;
}

/// What the plan says of a curve's values, in their unit; `absent`: nothing.
double planned_level(const Run& run, const Curve& curve) {
    if (curve.field == &StepRow::memory_gib) return run.planned_gib;
    return curve.field == &StepRow::tokens_per_second ? run.planned_rate : absent;
}

/// Of figures that evaluations alone have, their marks.
Chart curve_of(const Run& run, const Curve& curve, Points all, const Points& evals) {
    const bool memory = curve.field == &StepRow::memory_gib;
    const bool noisy = !memory && curve.field != &StepRow::learning_rate && all.size() >= least_smoothed;
    const bool small = memory && std::all_of(all.begin(), all.end(), [](auto& p) { return std::abs(p.second) < 1; });
    if (small) all = times(all, 1024);
    const Points points = thinned(all, most_points), &labelled = points.empty() ? evals : points;
    const double level = planned_level(run, curve) * (small ? 1024 : 1);
    const Frame frame(points, evals, level);
    Chart chart{
        curve.key,
        cat(curve.title, *curve.unit ? cat(" (", small ? "MiB" : curve.unit, ")") : ""),
        frame.grid(),
        cat(frame.attributes(), " data-points='", data_of(labelled), "'"),
        {{"", cat("last ", short_number(labelled.back().second), noisy ? ", bold: mean of the steps before" : "")}}};
    if (noisy) {
        chart.body += frame.polyline(points, "raw") + frame.polyline(thinned(smoothed(all), most_points), "main");
    } else {
        chart.body += frame.polyline(points, "main");
    }
    if (std::isfinite(level)) {
        chart.body += line("plan", left, frame.y(level), right, frame.y(level));
        chart.legend.push_back({"second", memory ? "plan" : "plan, with full rows"});
    }
    for (const auto& [step, value] : evals)
        chart.body += cat("<circle class=\"eval\" cx=\"", fixed(frame.x(step)), "\" cy=\"", fixed(frame.y(value)),
                          "\" r=\"3.5\"/>");
    if (!evals.empty()) chart.legend.push_back({"second", "evaluation"});
    chart.body += cursor();
    return chart;
}

/// Names from the bottom up: those at the ends, and of layers as many as there is room for.
std::string part_labels(const std::vector<std::string>& parts, double tall) {
    constexpr double apart = 14;
    constexpr std::string_view layer = "layers.";
    constexpr std::size_t longest = 6;
    int every = 1;
    for (const int next : {2, 5, 10, 20, 50, 100})
        if (every * tall < apart) every = next;
    std::vector<double> placed;
    std::string text;
    for (const bool layers : {false, true})
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (parts[i].starts_with(layer) != layers) continue;
            const std::string name = layers ? parts[i].substr(layer.size(), longest)
                                            : parts[i].substr(0, std::min(parts[i].find('_'), longest));
            const double y = bottom - tall * (static_cast<double>(i) + 0.5) + 4;
            if (layers && std::atoi(name.c_str()) % every != 0) continue;
            if (std::any_of(placed.begin(), placed.end(), [&](double other) { return std::abs(y - other) < apart; }))
                continue;
            placed.push_back(y);
            text += label(left - 6, y, "end", name);
        }
    return text;
}

/// The greatest norm of any part, by step.
Points greatest_norms(const Run& run) {
    Points points;
    for (const StepRow& row : run.steps) {
        double most = 0;
        for (const float norm : row.part_norms)
            if (std::isfinite(norm)) most = std::max<double>(most, norm);
        if (most > 0) points.emplace_back(static_cast<double>(row.step), most);
    }
    return points;
}

/// Of each part of the model and of some steps together the (step, norm) of the greatest: no spike vanishes.
struct NormCells {
    std::size_t columns, parts;
    double wide = (right - left) / static_cast<double>(columns), tall = (bottom - top) / static_cast<double>(parts);
    std::vector<Points> by_column{columns, Points(parts)};
    double least = INFINITY, most = 0;

    void put(std::size_t column, std::size_t part, double step, double norm) {
        if (auto& cell = by_column[std::min(column, columns - 1)][part]; norm > cell.second) cell = {step, norm};
    }
    void measure() {
        for (const Points& column : by_column)
            for (const auto& [step, norm] : column)
                if (norm > 0) least = std::min(least, norm), most = std::max(most, norm);
        least = std::max(least, most * 1e-4);  // a part that hardly moves leaves the others their shades
    }
    /// In [0, 1], by logarithm.
    double share(double norm) const {
        return most > least ? std::max(0.0, std::log(norm / least) / std::log(most / least)) : 1;
    }
};

/// Elements that fill the cells: for all of one shade one path.
std::string shades_of(const NormCells& cells) {
    constexpr std::size_t count = 10;
    std::vector<std::string> paths(count);
    const auto x = [&](std::size_t column) { return fixed(left + cells.wide * static_cast<double>(column)); };
    const auto y = [&](std::size_t part) { return fixed(bottom - cells.tall * static_cast<double>(part)); };
    for (std::size_t column = 0; column < cells.columns; ++column)
        for (std::size_t part = 0; part < cells.parts; ++part) {
            const double norm = cells.by_column[column][part].second;
            if (norm == 0) continue;
            paths[std::min(count - 1, static_cast<std::size_t>(cells.share(norm) * count))] +=
                cat("M", x(column), " ", y(part), "H", x(column + 1), "V", y(part + 1), "H", x(column), "Z");
        }
    std::string text;
    for (std::size_t shade = 0; shade < count; ++shade)
        text += cat("<path class=\"column\" shape-rendering=\"crispEdges\" opacity=\"",
                    fixed(static_cast<double>(shade + 1) / count), "\" d=\"", paths[shade], "\"/>");
    return text;
}

Chart norms_of(const Run& run, const Points& greatest) {
    constexpr std::size_t most_columns = 60;
    const Frame frame(greatest, {}, absent);
    NormCells cells{std::min(greatest.size(), most_columns), run.parts.size()};
    for (const StepRow& row : run.steps)
        for (std::size_t part = 0; part < row.part_norms.size(); ++part) {
            const double norm = row.part_norms[part], step = static_cast<double>(row.step);
            if (std::isfinite(norm) && norm > 0)
                cells.put(static_cast<std::size_t>((frame.x(step) - left) / cells.wide), part, step, norm);
        }
    cells.measure();
    Json labels = Json::array();
    for (const Points& column : cells.by_column) {
        const auto highest =
            std::max_element(column.begin(), column.end(), [](auto& a, auto& b) { return a.second < b.second; });
        if (highest->second > 0)
            labels.push_back({static_cast<int64_t>(highest->first),
                              cat(short_number(highest->second), " in ",
                                  run.parts[static_cast<std::size_t>(highest - column.begin())])});
    }
    return {"layer_norms",
            "Layers' gradient norms, before clipping",
            part_labels(run.parts, cells.tall) + frame.step_labels() + shades_of(cells) + cursor(),
            cat(frame.attributes(), " data-points=\"", escaped(labels.dump()), "\""),
            {{"", cat("faint ", short_number(cells.least), ", full ", short_number(cells.most), ", by logarithm")}}};
}

Chart lengths_of(const std::vector<int64_t>& counts) {
    std::size_t first = 0;
    while (first < counts.size() && counts[first] == 0) ++first;
    Chart chart{"row_tokens",
                "Sequence lengths",
                "",
                "",
                {{"", "sequences of at most this many tokens, and more than half of it"}}};
    const double most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
    const double step = chart_width / static_cast<double>(counts.size() - first), widest_label = 36;
    const auto labelled = static_cast<std::size_t>(std::ceil(widest_label / step));
    for (std::size_t i = first; i < counts.size(); ++i) {
        const double x = step * static_cast<double>(i - first);
        const double tall = (bottom - top - 14) * static_cast<double>(counts[i]) / most;
        chart.body += box("column", x + 2, bottom - tall, std::max(step - 4, 1.0), tall);
        if ((i - first) % labelled != 0) continue;
        chart.body += label(x + step / 2, bottom + 17, "middle",
                            i < 14 ? std::to_string(1 << i) : cat(int64_t{1} << (i - 10), "k"));
        if (counts[i] > 0)
            chart.body +=
                label(x + step / 2, bottom - tall - 4, "middle", short_number(static_cast<double>(counts[i])));
    }
    return chart;
}

/// The measured peak, then a line a group, the largest first; what does not fit is one line.
Chart memory_of(const Run& run) {
    constexpr std::size_t all_lines = 7;
    const double peak = run.peak_gib() * (1 << 30);
    const std::size_t most_lines = all_lines - (std::isfinite(peak) ? 1 : 0);
    auto groups = run.planned_groups;
    std::stable_sort(groups.begin(), groups.end(), [](auto& a, auto& b) { return a.second > b.second; });
    double sum = 0;
    for (const auto& [name, bytes] : groups) sum += static_cast<double>(bytes);
    while (groups.size() > most_lines) {
        const int64_t last = groups.back().second;
        groups.pop_back();
        if (groups.size() == most_lines) groups.back() = {"others", groups.back().second};
        groups.back().second += last;
    }
    const double planned = run.planned_gib * (1 << 30);
    Chart chart{
        "planned_memory", "Planned memory", "", "", {{"", cat("in all ", human_bytes(static_cast<int64_t>(planned)))}}};
    if (sum > planned * 1.005)
        chart.legend.back().text +=
            cat("; ", human_bytes(static_cast<int64_t>(sum - planned)), " serve two purposes alternately");
    double most = std::max(1.0, static_cast<double>(groups.front().second)), y = 0;
    const auto add = [&](const char* kind, const std::string& name, int64_t bytes) {
        chart.body += label(0, y + 13, "start", name) + label(chart_width, y + 13, "end", human_bytes(bytes)) +
                      box("rule", 0, y + 18, chart_width, 5) +
                      box(kind, 0, y + 18, chart_width * static_cast<double>(bytes) / most, 5);
        y += chart_height / all_lines;
    };
    if (std::isfinite(peak)) {
        chart.title = "Planned memory, and the measured peak";
        most = std::max(most, peak);
        add("second", "measured peak", static_cast<int64_t>(peak));
    }
    for (const auto& [name, bytes] : groups) add("column", name, bytes);
    return chart;
}

}  // namespace

std::string visible(const std::string& completion) {
    if (completion.empty()) return "(no text)";
    return completion.find_first_not_of(" \t\r\n") == std::string::npos ? "(white space alone)" : completion;
}

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

std::optional<Chart> trials_chart(const Run& run) {
    const std::optional<Sweep> sweep = read_sweep(run.folder);
    if (!sweep) return std::nullopt;
    Points all;
    std::vector<Points> trials;
    for (const SweepTrial& trial : sweep->trials) {
        trials.emplace_back();
        for (const SweepScore& score : trial.scores)
            if (std::isfinite(score.value)) trials.back().emplace_back(static_cast<double>(score.step), score.value);
        all.insert(all.end(), trials.back().begin(), trials.back().end());
    }
    if (all.empty()) return std::nullopt;
    const Frame frame(all, {}, absent);
    Chart chart{"trials", cat("Sweep: ", sweep->metric), frame.grid(), "", {{"line", "best"}, {"", "others"}}};
    for (std::size_t i = 0; i < trials.size(); ++i) {
        const bool best = sweep->best == static_cast<int>(i) + 1;
        chart.body += frame.polyline(trials[i], best ? "main" : "raw");
        for (const auto& [step, value] : trials[i])
            chart.body += cat("<circle class=\"", best ? "eval" : "raw", "\" cx=\"", fixed(frame.x(step)), "\" cy=\"",
                              fixed(frame.y(value)), "\" r=\"2.5\"/>");
    }
    return chart;
}

std::vector<Chart> charts_of(const Run& run) {
    std::vector<Chart> charts;
    for (const Curve& curve : curves()) {
        if (const Points points = points_of(run, curve), evals = eval_points(run, curve);
            !points.empty() || !evals.empty())
            charts.push_back(curve_of(run, curve, points, evals));
        if (curve.field != &StepRow::grad_norm) continue;
        if (const Points norms = greatest_norms(run); !norms.empty()) charts.push_back(norms_of(run, norms));
    }
    if (std::any_of(run.row_tokens.begin(), run.row_tokens.end(), [](int64_t count) { return count > 0; }))
        charts.push_back(lengths_of(run.row_tokens));
    if (!run.planned_groups.empty() && std::isfinite(run.planned_gib)) charts.push_back(memory_of(run));
    return charts;
}

}  // namespace unsloth::report
