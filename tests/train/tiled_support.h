// Reference rows with images of Llama 3.2 Vision.
#pragma once

#include "train/vision_support.h"

namespace unsloth::test {

inline constexpr int32_t tile_token = 296;

/// The set's files, and rows made of them.
class TiledRows {
  public:
    TiledRows()
        : set(vision_set("mllama")),
          files(unpacked(set)),
          forward(read_json(files / "forward.json")),
          grids_(read_json(files / "images.json")),
          pixels_(read_tensors(files / "pixels_uint8.safetensors")) {}

    data::Image image(const std::string& name) const {
        constexpr std::array<std::array<int32_t, 2>, 8> arrangements = {
            {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}, {4, 1}}};
        const at::Tensor& bytes = pixels_.at(name);
        const auto* const first = bytes.const_data_ptr<uint8_t>();
        const auto id = grids_.at(name).at("aspect_ratio_id").get<std::size_t>();
        const auto [height, width] = arrangements.at(id - 1);
        return {0, height, width, std::make_shared<const std::vector<uint8_t>>(first, first + bytes.numel())};
    }

    data::Sample sample(const nlohmann::json& row, int64_t number) const {
        data::Sample sample{number, row["input_ids"], row["labels"], {}};
        for (int32_t t = 0; t < static_cast<int32_t>(sample.ids.size()); ++t) sample.positions.push_back(t);
        auto next = sample.ids.begin();
        for (const auto& name : row["images"].get<std::vector<std::string>>()) {
            data::Image image = this->image(name);
            next = std::find(next, sample.ids.end(), tile_token);
            image.first = static_cast<int32_t>(next++ - sample.ids.begin());
            sample.images.push_back(image);
        }
        return sample;
    }
    data::Sample sample(std::size_t number) const {
        return sample(forward["rows"][number], static_cast<int64_t>(number));
    }
    /// A prompt of ids and images, which nobody learns from.
    data::Sample prompt(const std::vector<int32_t>& ids, const std::vector<std::string>& images) const {
        return sample(nlohmann::json{{"input_ids", ids}, {"labels", ids}, {"images", images}}, 0);
    }
    bool holds(const nlohmann::json& row) const {
        const auto names = row["images"].get<std::vector<std::string>>();
        return std::ranges::all_of(names, [&](const std::string& name) { return pixels_.contains(name); });
    }

    const fs::path set, files;
    const nlohmann::json forward;

  private:
    nlohmann::json grids_;
    std::map<std::string, at::Tensor> pixels_;
};

inline model::LoadRequest seeing_tiles(const std::string& device) {
    model::LoadRequest request = seeing(device, at::kFloat);
    request.sizes.patches = 4;
    request.sizes.image_tokens = 6;
    return request;
}

}  // namespace unsloth::test
