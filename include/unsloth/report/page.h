// A run as one HTML file that needs nothing else: no network, no other file.
#pragma once

#include <string>

#include "unsloth/report/run.h"

namespace unsloth::report {

inline constexpr const char* page_file = "report.html";

/// Figures, curves, the lengths of the rows and the whole configuration; in light and in dark, on a phone and on a wide
/// screen. A page of a run that has not ended asks the browser for itself again every `refresh_seconds`; 0: never.
std::string page(const Run& run, int refresh_seconds);

/// The curve of the loss and the plan of the memory as one SVG file, for light and dark pages that show it. Input Error
/// when nothing was logged.
std::string picture(const Run& run);

}  // namespace unsloth::report
