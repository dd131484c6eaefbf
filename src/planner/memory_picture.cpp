#include "unsloth/planner/memory_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::planner {
namespace {

constexpr double gib = 1024.0 * 1024 * 1024;
constexpr double left = 60, top = 44, wide = 620, tall = 300, legend = left + wide + 24, width = 960, height = 400;
const char* const colours[most_bands] = {"#4e79a7", "#f28e2b", "#76b7b2", "#e15759", "#59a14f",
                                         "#edc948", "#b07aa1", "#9c755f", "#bab0ac"};

std::string number(double value, int digits = 1) {
    char text[48];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
    return result;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
    return cat("<text x=\"", number(x), "\" y=\"", number(y), "\" text-anchor=\"", anchor, "\"", more, ">",
               escaped(text), "</text>\n");
}

std::string line_at(double x1, double y1, double x2, double y2, const char* more) {
    return cat("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"", number(y2), "\" ",
               more, "/>\n");
}

/// A round number of GiB between lines, of which there are at most six.
double spacing(double highest) {
    double step = 0.001;
    for (int i = 0; highest / step > 6; ++i) step *= i % 3 == 1 ? 2.5 : 2;
    return step;
}

/// The coordinates of times and bytes.
struct Frame {
    double ms, highest;
    double x(double at) const { return left + wide * at / ms; }
    double y(double bytes) const { return top + tall * (1 - bytes / highest); }
};

std::string area(const Frame& frame, const MemoryOverTime& memory, const std::vector<int64_t>& low,
                 const std::vector<int64_t>& high, const char* colour) {
    std::string there, back;
    double at = 0;
    for (std::size_t i = 0; i < memory.ms.size(); ++i) {
        for (const double x : {frame.x(at), frame.x(at + memory.ms[i])}) {
            there += cat(number(x), ",", number(frame.y(static_cast<double>(high[i]))), " ");
            back = cat(number(x), ",", number(frame.y(static_cast<double>(low[i]))), " ") + back;
        }
        at += memory.ms[i];
    }
    return cat("<polygon fill=\"", colour, "\" points=\"", there, back, "\"/>\n");
}

std::string phases_of(const Frame& frame, const MemoryOverTime& memory) {
    std::string svg;
    double at = 0;
    for (std::size_t first = 0, end = 0; first < memory.ms.size(); first = end) {
        const double begin = at;
        while (end < memory.ms.size() && memory.phases[end] == memory.phases[first]) at += memory.ms[end++];
        if (first > 0)
            svg += line_at(frame.x(begin), top, frame.x(begin), top + tall, "stroke=\"#888\" stroke-width=\"0.5\"");
        const bool narrow = frame.x(at) - frame.x(begin) < 40;
        svg += text_at((frame.x(begin) + frame.x(at)) / 2, top + tall + (narrow ? 48 : 34), "middle",
                       memory.phases[first]);
    }
    return svg;
}

}  // namespace

int64_t MemoryOverTime::most() const {
    int64_t highest = 0;
    for (std::size_t i = 0; i < ms.size(); ++i) {
        int64_t sum = 0;
        for (const MemoryBand& band : bands) sum += band.bytes[i];
        highest = std::max(highest, sum);
    }
    return highest;
}

std::string memory_svg(const MemoryOverTime& memory, const std::string& title) {
    UNSLOTH_CHECK(!memory.ms.empty() && memory.ms.size() == memory.phases.size(), "no stretch of time");
    UNSLOTH_CHECK(memory.bands.size() <= most_bands, memory.bands.size(), " bands for ", most_bands, " colours");
    const double highest = 1.05 * static_cast<double>(std::max<int64_t>({1, memory.planned, memory.most()}));
    const double ms = std::accumulate(memory.ms.begin(), memory.ms.end(), 0.0);
    UNSLOTH_CHECK(ms >= 0 && std::isfinite(ms), "a step of ", ms, " ms");
    const Frame frame{ms > 0 ? ms : 1, highest};
    std::string svg = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", number(width, 0), " ",
                          number(height, 0), "\" font-family=\"sans-serif\" font-size=\"12\">\n",
                          "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                          text_at(left, 24, "start", title, " font-weight=\"bold\""));
    const double step = spacing(highest / gib);
    for (int i = 0; i * step * gib < highest; ++i) {
        const double at = i * step;
        svg += line_at(left, frame.y(at * gib), left + wide, frame.y(at * gib), "stroke=\"#ddd\"");
        svg += text_at(left - 6, frame.y(at * gib) + 4, "end", number(at, step < 1 ? 2 : 0));
    }
    svg += text_at(left - 6, top - 8, "end", "GiB");
    std::vector<int64_t> low(memory.ms.size(), 0);
    for (std::size_t b = 0; b < memory.bands.size(); ++b) {
        const MemoryBand& band = memory.bands[b];
        std::vector<int64_t> high = low;
        for (std::size_t i = 0; i < high.size(); ++i) high[i] += band.bytes[i];
        const char* const colour = colours[b];
        svg += area(frame, memory, low, high, colour);
        const double y = top + tall - 18.0 * static_cast<double>(b);
        svg += cat("<rect x=\"", number(legend), "\" y=\"", number(y - 10), "\" width=\"12\" height=\"12\" fill=\"",
                   colour, "\"/>\n");
        const int64_t most = *std::max_element(band.bytes.begin(), band.bytes.end());
        svg += text_at(legend + 18, y, "start", cat(band.name, ", ", number(static_cast<double>(most) / gib, 2)));
        low = std::move(high);
    }
    const double planned = frame.y(static_cast<double>(memory.planned));
    svg += line_at(left, planned, left + wide, planned, "stroke=\"#000\" stroke-dasharray=\"5 3\"");
    svg += text_at(left + wide, planned - 5, "end",
                   cat("planned ", number(static_cast<double>(memory.planned) / gib, 2), " GiB"));
    for (int part = 0; part <= 4; ++part) {
        const double at = frame.ms * part / 4;
        svg += text_at(frame.x(at), top + tall + 18, "middle", cat(number(at, 0), " ms"));
    }
    return svg + phases_of(frame, memory) + "</svg>\n";
}

}  // namespace unsloth::planner
