#include "train/pictured_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"
#include "unsloth/data/show.h"
#include "unsloth/data/thumbnail.h"
#include "unsloth/data/vision.h"

namespace unsloth::train {
namespace {

/// So the file stays below half a megabyte.
constexpr std::size_t most_rows = 4, most_images = 4, most_bytes = 4000;

/// The beginning of a text; a character that the cut divides is dropped.
std::string beginning(std::string text) {
    if (text.size() <= most_bytes) return text;
    text.resize(most_bytes);
    text.resize(first_invalid_utf8(text));
    return text + " …";
}

nlohmann::ordered_json picture_of(const data::Sample& row, const tokenizer::Tokenizer& tokenizer,
                                  const std::vector<std::string>& urls) {
    nlohmann::ordered_json line{{"row", row.row},
                                {"tokens", row.ids.size()},
                                {"text", beginning(data::show_tokens(row, &tokenizer, data::Marks::brackets))}};
    const auto ranges = data::image_ranges(row);
    for (std::size_t i = 0; i < std::min(ranges.size(), most_images); ++i)
        line["images"].push_back({{"tokens", ranges[i]}, {"url", i < urls.size() ? urls[i] : ""}});
    return line;
}

}  // namespace

std::string pictured_rows(const data::Dataset& rows, const session::OpenedModel& opened) {
    std::string lines;
    const tokenizer::Tokenizer tokenizer = opened.tokenizer();
    std::size_t count = 0;
    for (int64_t i = 0; i < rows.size() && count < most_rows; ++i) {
        if (rows.image_sizes(i).patches == 0) continue;
        ++count;
        std::vector<data::Sample> row = {rows.sample(i)};
        std::vector<std::string> urls;
        try {
            data::load_pixels(row, rows.vision());  // also where kept features take their place in training
            urls = data::thumbnails_of(row[0].images, rows.vision(), most_images);
        } catch (const Error&) {  // training refuses the image when its row comes
        }
        lines +=
            picture_of(row[0], tokenizer, urls).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
            "\n";
    }
    return lines;
}

}  // namespace unsloth::train
