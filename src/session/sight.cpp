#include "unsloth/session/sight.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/data/seen_prompt.h"
#include "unsloth/data/thumbnail.h"

namespace unsloth::session {

Sight::Sight(const OpenedModel& opened, int64_t image_max_pixels) {
    if (!opened.file->spec.vision) return;
    try {
        vision_ = data::read_vision_rows(opened.file->checkpoint.folder(), image_max_pixels);
    } catch (const Error& unread) {  // texts are answered all the same
        auto vision = std::make_shared<data::VisionRows>();
        vision->missing = unread.what();
        vision_ = std::move(vision);
    }
    tower_ = *opened.file->spec.vision;
}

int64_t Sight::most_patches(int64_t tokens) const {
    if (!sees_images()) return 0;
    if (tower_.tiles) return tower_.tiles->most;
    // A long side is kept where the other one would round to nothing: it is up to 200 times the other
    // (images::grid_of).
    constexpr double longest_aspect = 200;
    const images::Processor& processor = vision_->processor;
    const auto side = static_cast<double>(processor.patch * processor.merge),
               pixels = static_cast<double>(processor.most_pixels);
    const double most = std::max(pixels / (side * side), std::sqrt(longest_aspect * pixels) / side + 1);
    return std::min(static_cast<int64_t>(most), tokens) * tower_.merge * tower_.merge;
}

std::vector<std::string> Sight::thumbnails(const std::vector<data::Image>& images, std::size_t most) const {
    return data::thumbnails_of(images, *vision_, most);
}

int64_t Sight::image_room(int64_t pass_tokens, int64_t rows, int64_t images) const {
    return tower_.tiles ? generate::room_for_tiled(rows, images) : pass_tokens;
}

SeenPrompt Sight::read(const nlohmann::ordered_json& row, const std::filesystem::path& root,
                       const std::function<Prompt(const nlohmann::ordered_json& row)>& encode,
                       const Bounds& bounds) const {
    if (!data::shows_images(row)) return {encode(row)};
    if (!vision_)
        throw Error("image.text-model", "the prompt has images, and text alone is read here",
                    "Choose a model with a vision tower, or remove the images.");
    data::Sample placed = data::place_images(row, *vision_, root, encode);
    if (std::ssize(placed.images) > bounds.images)
        throw Error("image.count", cat("the prompt has ", placed.images.size(), " images, and there is room for ",
                                       bounds.images, " at a time"));
    for (std::size_t i = 0; i < placed.images.size(); ++i)
        if (const int64_t tokens = vision_->tokens_of(placed.images[i]); tokens > bounds.image)
            throw Error("image.too-large",
                        cat("image ", i + 1, " takes ", tokens, " tokens, and there is room for ", bounds.image),
                        "Make it smaller, or raise --max_num_batched_tokens.");
    if (static_cast<int64_t>(placed.ids.size()) > bounds.prompt) return {std::move(placed.ids)};
    data::see_images_of(placed, *vision_);
    auto images = std::make_shared<const generate::PromptImages>(placed, tower_);
    return {std::move(placed.ids), std::move(images)};
}

}  // namespace unsloth::session
