// How a model sees the images of prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "unsloth/data/vision.h"
#include "unsloth/generate/prompt_images.h"
#include "unsloth/session/session.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::session {

using Prompt = std::vector<int32_t>;  ///< ids

struct SeenPrompt {
    Prompt ids;
    std::shared_ptr<const generate::PromptImages> images = nullptr;  ///< of whose tokens some ids are; nullptr: none

    int64_t size() const { return static_cast<int64_t>(ids.size()); }
    int64_t patches() const { return images ? images->patches() : 0; }  ///< of its largest image
    int64_t image_count() const { return images ? std::ssize(images->images) : 0; }
};

/// Of a model without a tower, or where images are not read: prompts with images are refused. Safe from any thread.
class Sight {
  public:
    Sight() = default;
    /// `image_max_pixels`: of prompts' images, as data.image_max_pixels has it; 0: none is shrunk.
    explicit Sight(const OpenedModel& opened, int64_t image_max_pixels);

    bool sees_images() const { return vision_ != nullptr && vision_->missing.empty(); }
    /// Patches of the largest image of up to `tokens` tokens that the model's processor makes; 0: it sees none.
    int64_t most_patches(int64_t tokens) const;
    /// ActivationSizes::image_tokens of answers to prompts of up to `images` images each; 0: it is not known. `rows` of
    /// them run at a time, in passes of `pass_tokens`.
    int64_t image_room(int64_t pass_tokens, int64_t rows, int64_t images) const;

    /// data::thumbnails_of() of images with pixels.
    std::vector<std::string> thumbnails(const std::vector<data::Image>& images, std::size_t most) const;

    /// What is refused before anything is decoded.
    struct Bounds {
        int64_t image = INT64_MAX;   ///< tokens of an image
        int64_t images = INT64_MAX;  ///< images of a prompt
        int64_t prompt = INT64_MAX;  ///< a longer prompt is returned without its images, for the caller to refuse
    };
    /// `row`: a conversation, with images or without any; `encode` makes ids of it. Paths of images are below `root`.
    /// Input Errors image.*.
    SeenPrompt read(const nlohmann::ordered_json& row, const std::filesystem::path& root,
                    const std::function<Prompt(const nlohmann::ordered_json& row)>& encode, const Bounds& bounds) const;
    SeenPrompt read(const nlohmann::ordered_json& row, const std::filesystem::path& root,
                    const std::function<Prompt(const nlohmann::ordered_json& row)>& encode) const {
        return read(row, root, encode, Bounds());
    }

  private:
    std::shared_ptr<const data::VisionRows> vision_;
    spec::VisionSpec tower_;
};

}  // namespace unsloth::session
