// Curves and figures of runs as text for a terminal.
#pragma once

#include <string>
#include <vector>

#include "unsloth/report/series.h"

namespace unsloth::report {

struct Line {
    Points points;
    bool dots = false;  ///< marks instead of a line
};

/// A frame with axes, `columns` wide and `rows` high in all, of eight dots (braille) a character. With `colours` each
/// line has one of its own, in ANSI sequences. Empty lines are dropped; nothing to draw says so.
std::string plot(const std::string& title, const std::vector<Line>& lines, int columns, int rows, bool colours);

/// The state of a run in one line, and its curves. What comes from its files went through printable(), here and below.
std::string run_view(const Run& run, int columns, int rows, bool colours);

/// A line of figures a run, its losses over each other, and the options in which the runs differ.
std::string comparison(const std::vector<Run>& runs, int columns, bool colours);

/// The options in which configurations differ: {option, its value in each as JSON text, "" where it has none}.
std::vector<std::pair<std::string, std::vector<std::string>>> differing_options(const std::vector<Run>& runs);

}  // namespace unsloth::report
