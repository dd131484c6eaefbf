// A run's drawings as SVG, in the classes that chart_style colours.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "unsloth/report/run.h"

namespace unsloth::report {

inline constexpr double chart_width = 360, chart_height = 200;

struct LegendPart {
    const char* key;  ///< "", or "line" or "second": the class of a mark before the text
    std::string text;
};

struct Chart {
    std::string id, title;
    std::string body;        ///< elements within chart_width × chart_height
    std::string attributes;  ///< of the element that holds them: what the page's script reads
    std::vector<LegendPart> legend;
};

/// Curves in their order, with the per-layer norms after the gradient norm; then the row lengths and the memory plan.
/// Charts without data in the run are omitted.
std::vector<Chart> charts_of(const Run& run);

/// The trials of the sweep that the run won, by their values at each comparison; nullopt: it won none.
std::optional<Chart> trials_chart(const Run& run);

/// A completion; of one without a character to see, what it is in words.
std::string visible(const std::string& completion);

/// Text as it may stand in HTML and XML.
std::string escaped(const std::string& text);

}  // namespace unsloth::report
