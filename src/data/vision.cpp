#include "unsloth/data/vision.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "data/image_source.h"
#include "unsloth/core/check.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/core/parallel.h"

namespace unsloth::data {

std::shared_ptr<const VisionRows> read_vision_rows(const std::filesystem::path& model_folder,
                                                   int64_t image_max_pixels) {
    const std::filesystem::path path = model_folder / "config.json";
    if (!std::filesystem::exists(path)) return nullptr;
    const auto json = parse_json<nlohmann::json>(read_file(path), path.string());
    const JsonReader<nlohmann::json> config(json, path.string());
    const std::string type = config.string("model_type").value_or("");
    const bool mllama = type == "mllama";
    if (!config.has("vision_config") || (!mllama && type != "qwen2_5_vl" && type != "qwen3_vl")) return nullptr;
    auto vision = std::make_shared<VisionRows>();
    if (const auto processor = images::read_processor(model_folder))
        vision->processor = *processor;
    else
        vision->missing = cat(model_folder.string(), " has no preprocessor_config.json");
    vision->processor.shrink_to = image_max_pixels;
    vision->image_token = config.at(mllama ? "image_token_index" : "image_token_id").id();
    vision->three_axes = !mllama;
    return vision;
}

std::string describe(const VisionRows& vision) {
    const auto& [processor, image_token, three_axes, missing] = vision;
    return cat(images::describe(processor), " token ", image_token, " axes ", three_axes, " ", missing);
}

std::vector<int32_t> axes_of(const Sample& row, const VisionRows& vision) {
    std::vector<int32_t> axes;
    axes.reserve(row.ids.size() * 3);
    int32_t next = 0;
    std::size_t t = 0;
    auto image = row.images.begin();
    const auto text_until = [&](std::size_t end) {
        for (; t < end; ++t, ++next) axes.insert(axes.end(), 3, next);
    };
    const Segments segments = listed(row.segments, row.ids.size());
    for (const Segment& segment : segments) {
        next = 0;
        if (segment.shared > 0) {  // its first position is the one after these tokens
            const auto first =
                axes.begin() + std::ptrdiff_t{3} * segments[static_cast<std::size_t>(segment.owner)].begin;
            next = *std::max_element(first, first + std::ptrdiff_t{3} * segment.shared) + 1;
        }
        for (; image != row.images.end() && image->first < segment.end(); ++image) {
            text_until(static_cast<std::size_t>(image->first));
            const int32_t height = image->grid_h / vision.processor.merge,
                          width = image->grid_w / vision.processor.merge;
            for (int32_t y = 0; y < height; ++y)
                for (int32_t x = 0; x < width; ++x, ++t) axes.insert(axes.end(), {next, next + y, next + x});
            next += std::max(height, width);
        }
        text_until(static_cast<std::size_t>(segment.end()));
    }
    return axes;
}

namespace {

struct Wanted {
    Image* image;
    const ImageSource* source;
};

/// An image, and one of the same file whose pixels it shares.
struct Repeated {
    Image* image;
    const Image* first;
};

void decode_into(Image& image, const ImageFile& file, const ImageSource& source, const VisionRows& vision) {
    images::Pixels pixels = images::process(vision.processor, file.decode());
    if (pixels.grid.height != image.grid_h || pixels.grid.width != image.grid_w)
        throw Error("image.damaged", cat(name_of(source), ": the image has another size than when its row was encoded"),
                    "It changed meanwhile: start again, without data.cache_dir's older files.");
    image.pixels = std::make_shared<const std::vector<uint8_t>>(std::move(pixels.values));
}

/// Images by their content, each once. From any thread.
class Contents {
  public:
    /// The image that came first with the content of this one: itself, if it does.
    const Image* first_like(const Image& image) {
        const std::lock_guard lock(mutex_);
        return first_.emplace(image.content, &image).first->second;
    }

  private:
    std::mutex mutex_;
    std::unordered_map<std::string, const Image*> first_;
};

}  // namespace

void load_pixels(std::vector<Sample>& rows, const VisionRows& vision, const KeptImages* kept) {
    std::vector<Wanted> wanted;
    std::vector<Repeated> in_row;  // as a pair's answers see
    for (Sample& row : rows)
        for (std::size_t i = 0; i < row.sources.size(); ++i) {
            if (row.images.at(i).pixels) continue;
            const auto before = std::ranges::find(row.sources, row.sources[i]);
            if (const auto first = static_cast<std::size_t>(before - row.sources.begin()); first < i)
                in_row.push_back({&row.images[i], &row.images[first]});
            else
                wanted.push_back({&row.images[i], &row.sources[i]});
        }
    Contents contents;
    std::vector<const Image*> first(wanted.size(), nullptr);  // by wanted: where its pixels are, if not its own
    parallel_ranges(static_cast<int64_t>(wanted.size()), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            const auto& [image, source] = wanted[i];
            const ImageFile file(*source);
            if (kept != nullptr) {
                image->content = cat(file.hash(), " ", image->grid_h, "x", image->grid_w);
                if (kept->keeps(image->content)) continue;
                const Image* const like = contents.first_like(*image);
                if (like != image) {
                    first[i] = like;
                    continue;
                }
            }
            decode_into(*image, file, *source, vision);
        }
    });
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (first[i] != nullptr) wanted[i].image->pixels = first[i]->pixels;
    for (const auto& [image, same] : in_row) image->pixels = same->pixels, image->content = same->content;
}

}  // namespace unsloth::data
