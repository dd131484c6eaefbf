#include "unsloth/spec/stage.h"

#include <sstream>

#include "unsloth/core/error.h"

namespace unsloth::spec {

std::string layer_ranges_text(const std::vector<LayerRange>& ranges) {
    std::string text;
    for (const LayerRange& range : ranges) text += cat(text.empty() ? "" : " ", range.begin, "-", range.end);
    return text;
}

std::vector<LayerRange> parse_layer_ranges(const std::string& text) {
    std::vector<LayerRange> ranges;
    std::istringstream in(text);
    char dash = 0;
    for (LayerRange range; in >> range.begin >> dash >> range.end;) ranges.push_back(range);
    return ranges;
}

}  // namespace unsloth::spec
