// Reference rows with images, and models that see them.
#pragma once

#include "train/support.h"

namespace unsloth::test {

inline constexpr int32_t tiny_image_token = 6;

inline fs::path vision_set(const std::string& family) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    const fs::path full = shared != nullptr ? fs::path(shared) / "golden/families" / family : fs::path();
    return !full.empty() && fs::exists(full) ? full : golden("families/" + family);
}

/// A family's reference files, and rows made of them.
class SeenRows {
  public:
    explicit SeenRows(const std::string& family)
        : set(vision_set(family)),
          files(unpacked(set)),
          grids_(read_json(files / "images.json")),
          pixels_(read_tensors(files / "pixels_uint8.safetensors")) {}

    data::Image image(const std::string& name) const {
        const at::Tensor& bytes = pixels_.at(name);
        const auto* const first = bytes.const_data_ptr<uint8_t>();
        const nlohmann::json& grid = grids_.at(name).at("image_grid_thw");
        return {0, grid[1], grid[2], std::make_shared<const std::vector<uint8_t>>(first, first + bytes.numel())};
    }
    const std::map<std::string, at::Tensor>& pixels() const { return pixels_; }

    /// The row with its images where their tokens are.
    data::Sample sample(const nlohmann::json& row, int64_t number) const {
        data::Sample sample{number, row["input_ids"], row["labels"], {}};
        const auto tokens = static_cast<int32_t>(sample.ids.size());
        for (int32_t t = 0; t < tokens; ++t) sample.positions.push_back(t);
        auto next = sample.ids.begin();
        const auto names = row["images"].get<std::vector<std::string>>();
        for (const std::string& name : names) {
            data::Image image = this->image(name);
            next = std::find(next, sample.ids.end(), tiny_image_token);
            image.first = static_cast<int32_t>(next - sample.ids.begin());
            next += image.patches() / 4;
            sample.images.push_back(image);
        }
        if (!sample.images.empty()) sample.axes = axes_of(sample);
        return sample;
    }

    const fs::path set, files;

  private:
    /// An image's tokens have its first one's time, and their row and column from there; text goes on behind the
    /// largest.
    static std::vector<int32_t> axes_of(const data::Sample& sample) {
        std::vector<int32_t> axes;
        int32_t position = 0, t = 0;
        const auto text_until = [&](int32_t end) {
            for (; t < end; ++t, ++position) axes.insert(axes.end(), 3, position);
        };
        for (const data::Image& image : sample.images) {
            text_until(image.first);
            const int32_t h = image.grid_h / 2, w = image.grid_w / 2;
            for (int32_t i = 0; i < h * w; ++i, ++t)
                axes.insert(axes.end(), {position, position + i / w, position + i % w});
            position += std::max(h, w);
        }
        text_until(static_cast<int32_t>(sample.ids.size()));
        return axes;
    }

    nlohmann::json grids_;
    std::map<std::string, at::Tensor> pixels_;
};

inline model::LoadRequest seeing(const std::string& device, at::ScalarType dtype) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = dtype;
    request.load_in_4bit = false;
    request.sizes.tokens = request.sizes.head_rows = 256;
    request.sizes.longest = 128;
    request.sizes.segments = 8;
    request.sizes.patches = 64;
    request.sizes.image_tokens = 128;
    request.run.head_tile = 16;
    request.sizes.training = false;
    return request;
}

inline at::Tensor logits_of_row(model::Model& model, const data::Sample& row) {
    data::Batch batch = data::make_batch({&row, 1});
    data::cover_every_position(batch);
    std::vector<at::Tensor> chunks;
    model.score(
        batch, [&](int64_t, const at::Tensor& logits_CV) { chunks.push_back(logits_CV.to(at::kFloat).cpu().clone()); });
    return at::cat(chunks);
}

}  // namespace unsloth::test
