#include "unsloth/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "report/charts.h"
#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/text.h"
#include "unsloth/core/utf8.h"

namespace unsloth::report {
namespace {

const char* const line_colours[] = {"\033[36m", "\033[33m", "\033[35m", "\033[32m", "\033[31m", "\033[34m"};
constexpr const char* plain = "\033[0m";

/// Dots in cells of 2 x 4, as Unicode's braille patterns have them.
class Canvas {
  public:
    Canvas(int columns, int rows) : columns_(columns), rows_(rows) {
        cells_.resize(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows));
    }
    int width() const { return 2 * columns_; }
    int height() const { return 4 * rows_; }

    void dot(int x, int y, int line) {
        if (x < 0 || y < 0 || x >= width() || y >= height()) return;
        static constexpr int bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
        Cell& cell = cells_[static_cast<std::size_t>(y / 4 * columns_ + x / 2)];
        cell.bits |= bits[y % 4][x % 2];
        cell.line = line;
    }
    void stroke(int x0, int y0, int x1, int y1, int line) {
        const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
        for (int i = 0; i <= steps; ++i) dot(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps, line);
    }
    std::string row(int index, bool colours) const {
        std::string text;
        int current = -1;
        for (int column = 0; column < columns_; ++column) {
            const Cell& cell = cells_[static_cast<std::size_t>(index * columns_ + column)];
            if (cell.bits == 0) {
                text += ' ';
                continue;
            }
            if (colours && cell.line != current)
                text += line_colours[static_cast<std::size_t>(current = cell.line) % 6];
            const int code = 0x2800 + cell.bits;
            text += static_cast<char>(0xE0 | (code >> 12));
            text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
            text += static_cast<char>(0x80 | (code & 0x3F));
        }
        return current >= 0 ? text + plain : text;
    }

  private:
    struct Cell {
        int bits = 0, line = 0;
    };
    int columns_, rows_;
    std::vector<Cell> cells_;
};

void draw(Canvas& canvas, const Line& line, const Axis& steps, const Axis& values, int index) {
    const auto x_of = [&](double step) { return static_cast<int>(steps.share_of(step) * (canvas.width() - 1) + 0.5); };
    const auto y_of = [&](double value) {
        return static_cast<int>((1 - values.share_of(value)) * (canvas.height() - 1) + 0.5);
    };
    const Points points = line.dots ? line.points : thinned(line.points, static_cast<std::size_t>(canvas.width()));
    for (std::size_t i = 0; i < points.size(); ++i) {
        const int x = x_of(points[i].first), y = y_of(points[i].second);
        if (line.dots) {
            canvas.stroke(x - 1, y, x + 1, y, index), canvas.stroke(x, y - 1, x, y + 1, index);
        } else {
            const std::size_t before = i == 0 ? 0 : i - 1;
            canvas.stroke(x_of(points[before].first), y_of(points[before].second), x, y, index);
        }
    }
}

std::string padded(const std::string& text, int width) {
    const auto missing = static_cast<std::size_t>(std::max(0, width - static_cast<int>(text.size())));
    return std::string(missing, ' ') + text;
}

std::string shown(double value) {
    return std::isfinite(value) ? short_number(value) : "-";
}

/// Fields with two spaces between them, on as many lines as they take; each line but the first begins with `indent`.
std::string in_lines(const std::vector<std::string>& fields, int columns, const std::string& indent = "") {
    std::string text;
    std::size_t line = 0;
    for (const std::string& field : fields) {
        const bool fits = line + 2 + field.size() <= static_cast<std::size_t>(columns);
        if (line > 0) text += fits ? "  " : "\n" + indent;
        line = (line == 0 ? 0 : fits ? line + 2 : indent.size()) + field.size();
        text += field;
    }
    return text + "\n";
}

/// On one line of the terminal, with an ellipsis for what does not fit. Characters beyond Latin, Greek and Cyrillic
/// count as two columns, but for punctuation.
std::string fitted(std::string text, int columns) {
    std::replace_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
    text = printable(text);
    int taken = 0;
    std::size_t enough = 0;  // where the ellipsis would come
    for (std::size_t at = 0; at < text.size(); ++at) {
        const auto byte = static_cast<unsigned char>(text[at]);
        if ((byte & 0xC0) == 0x80) continue;
        if (taken <= columns - 1) enough = at;
        taken += byte > 0xE0 && byte != 0xE2 ? 2 : 1;
        if (taken > columns) return text.substr(0, enough) + "…";
    }
    return text;
}

std::string headline(const Run& run, int columns) {
    std::string text = fitted(run.name(), columns) + "\n";
    if (run.steps.empty()) return text + (run.killed() ? printable(run.killed_text()) : "no step yet") + "\n";
    const StepRow& last = run.steps.back();
    std::vector<std::string> fields = {cat("step ", last.step, run.total_steps > 0 ? cat("/", run.total_steps) : ""),
                                       cat("loss ", shown(last.loss))};
    if (!run.evals.empty()) {
        const auto [name, value] = judged_by(run.evals.back());
        fields.push_back(cat("eval ", name, " ", shown(value)));
    }
    fields.push_back(cat(shown(last.tokens_per_second), " tok/s",
                         std::isfinite(run.planned_rate) ? cat(" (plan ", shown(run.planned_rate), ")") : ""));
    fields.push_back(memory_text(last.memory_gib));
    if (run.ending)
        fields.push_back(printable(cat(run.ending->exit_reason, " after ", duration_text(run.ending->seconds))));
    else if (std::isfinite(run.seconds_left()))
        fields.push_back(cat("left ", duration_text(run.seconds_left())));
    text += in_lines(fields, columns);
    if (run.ending && !run.ending->error.empty()) text += printable(run.ending->error) + "\n";
    if (run.killed()) text += printable(run.killed_text()) + "\n";
    return text;
}

/// The measured peak and the parts of the memory plan, largest first; at most `most` lines.
std::string memory_lines(const Run& run, int columns, int most) {
    auto groups = run.planned_groups;
    std::stable_sort(groups.begin(), groups.end(), [](auto& a, auto& b) { return a.second > b.second; });
    const double peak = run.peak_gib();
    std::vector<std::string> fields = {cat("memory: ", std::isfinite(peak) ? cat("peak ", memory_text(peak), ", ") : "",
                                           "planned ", memory_text(run.planned_gib))};
    std::string text = most > 0 ? in_lines(fields, columns, "  ") : "";
    for (const auto& [name, bytes] : groups) {
        fields.push_back(cat(printable(name), " ", human_bytes(bytes)));
        const std::string more = in_lines(fields, columns, "  ");
        if (std::count(more.begin(), more.end(), '\n') > most) break;
        text = more;
    }
    return text;
}

/// The run's latest answers to its prompts, one line each; at most `most` lines.
std::string sample_lines(const Run& run, int columns, int most) {
    std::string text;
    const int for_prompt = columns * 2 / 5;
    const auto add = [&](const std::string& prompt, const std::string& answer) {
        if (most-- > 0) text += fitted(prompt, for_prompt) + " → " + fitted(answer, columns - for_prompt - 3) + "\n";
    };
    for (const SampleRow& row : run.samples)
        if (row.step == run.samples.back().step) add(row.prompt, visible(row.answer));
    for (const CompletionRow& row : run.completions)
        if (row.step == run.completions.back().step) add(row.prompt, visible(row.completion));
    return text;
}

int lines_of(const std::string& text) {
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

std::string plot(const std::string& title, const std::vector<Line>& lines, int columns, int rows, bool colours) {
    Axis steps, values;
    for (const Line& line : lines)
        for (const auto& [step, value] : line.points) steps.include(step), values.include(value);
    if (steps.empty() || values.empty()) return title + ": no values\n";
    if (steps.high == steps.low) steps.high = steps.low + 1;
    values.widen();
    const int inner_rows = std::max(rows - 3, 2);
    std::vector<std::string> labels(static_cast<std::size_t>(inner_rows));
    for (const int row : {0, inner_rows / 2, inner_rows - 1}) {
        const double share = static_cast<double>(row) / (inner_rows - 1);
        labels[static_cast<std::size_t>(row)] = short_number(values.high * (1 - share) + values.low * share);
    }
    std::size_t label_width = 8;
    for (const std::string& label : labels) label_width = std::max(label_width, label.size());
    const int width = static_cast<int>(label_width), inner_columns = std::max(columns - width - 2, 8);
    Canvas canvas(inner_columns, inner_rows);
    for (std::size_t i = 0; i < lines.size(); ++i) draw(canvas, lines[i], steps, values, static_cast<int>(i));
    std::string text = padded("", width + 2) + title + "\n";
    for (int row = 0; row < inner_rows; ++row) {
        const std::string& label = labels[static_cast<std::size_t>(row)];
        text += padded(label, width) + (label.empty() ? " │" : " ┤") + canvas.row(row, colours) + "\n";
    }
    std::string axis;
    for (int i = 0; i < inner_columns; ++i) axis += "─";
    const std::string left = short_number(steps.low), right = short_number(steps.high);
    text += padded("", width) + " └" + axis + "\n" + padded("", width + 2) + left +
            padded("step " + right, inner_columns - static_cast<int>(left.size())) + "\n";
    return text;
}

std::string run_view(const Run& run, int columns, int rows, bool colours) {
    constexpr int least_height = 6, plots = 3, most_memory = 3, most_samples = 5;
    std::string text = headline(run, columns);
    if (run.steps.empty()) return text;
    const auto room = [&] { return rows - lines_of(text) - plots * least_height; };
    text += memory_lines(run, columns, std::clamp(room() - 1, 0, most_memory));  // and a sample
    text += sample_lines(run, columns, std::clamp(room(), 0, most_samples));
    const int height = std::max(least_height, (rows - lines_of(text)) / plots);
    const Points losses = points_of(run, &StepRow::loss);
    text += plot(run.evals.empty() ? "loss" : "loss, + eval loss", {{losses}, {eval_points(run), true}}, columns,
                 height, colours);
    text += plot("gradient norm", {{points_of(run, &StepRow::grad_norm)}}, columns, height, colours);
    text += plot("tokens per second", {{points_of(run, &StepRow::tokens_per_second)}}, columns, height, colours);
    return text;
}

std::string comparison(const std::vector<Run>& runs, int columns, bool colours) {
    std::vector<std::string> names;
    std::size_t width = 4;
    for (const Run& run : runs) width = std::max(width, names.emplace_back(printable(run.name())).size());
    const auto cell = [](const std::string& text) { return " " + padded(text, 11); };
    std::string text = "    run" + std::string(width - 3, ' ') + cell("steps") + cell("loss") + cell("mean loss") +
                       cell("best eval") + cell("tok/s") + cell("memory") + cell("time") + "  state\n";
    std::vector<Line> lines;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const Run& run = runs[i];
        const Points losses = points_of(run, &StepRow::loss), evals = eval_points(run);
        double mean = 0, best = absent, rate = 0, memory = absent, seconds = 0;
        for (const auto& [step, loss] : losses) mean += loss / static_cast<double>(losses.size());
        for (const auto& [step, loss] : evals) best = std::isfinite(best) ? std::min(best, loss) : loss;
        for (const StepRow& row : run.steps) {
            if (std::isfinite(row.memory_gib))
                memory = std::isfinite(memory) ? std::max(memory, row.memory_gib) : row.memory_gib;
            if (std::isfinite(row.step_ms)) seconds += row.step_ms / 1000, rate += static_cast<double>(row.tokens);
        }
        text += cat(colours ? line_colours[i % 6] : "", "  ", colours ? "━ " : "  ", colours ? plain : "", names[i],
                    std::string(width - names[i].size(), ' '),
                    cell(run.steps.empty() ? "0" : std::to_string(run.steps.back().step)),
                    cell(losses.empty() ? "-" : shown(losses.back().second)), cell(losses.empty() ? "-" : shown(mean)),
                    cell(shown(best)), cell(seconds > 0 ? shown(rate / seconds) : "-"), cell(memory_text(memory)),
                    cell(run.ending ? duration_text(run.ending->seconds) : "-"), "  ",
                    run.ending     ? printable(run.ending->exit_reason)
                    : run.killed() ? printable(run.killed_text())
                                   : "runs",
                    "\n");
        lines.push_back({smoothed(losses)});
    }
    text += "\n" + plot("loss, smoothed", lines, columns, 16, colours) + "\n";
    for (const auto& [option, values] : differing_options(runs)) {
        std::string row = option + ":";
        for (std::size_t i = 0; i < values.size(); ++i)
            row += cat(i == 0 ? " " : " | ", values[i].empty() ? "-" : values[i]);
        text += printable(row) + "\n";
    }
    return text;
}

}  // namespace unsloth::report
