// Models that see images, with adapters in their towers.
#pragma once

#include "train/tiled_support.h"
#include "unsloth/spec/tower_lora.h"

namespace unsloth::test {

using TowerCase = std::tuple<std::string, std::string>;  ///< family, device

/// Rows of a set, whatever its images are made of.
struct TowerRows {
    explicit TowerRows(const std::string& family) {
        const auto take = [&](const auto& rows) {
            set = rows->set;
            files = rows->files;
            sample = [rows](const nlohmann::json& row, int64_t number) { return rows->sample(row, number); };
        };
        family == "mllama" ? take(std::make_shared<const TiledRows>()) : take(std::make_shared<const SeenRows>(family));
    }
    fs::path set, files;
    std::function<data::Sample(const nlohmann::json&, int64_t)> sample;
};

class TowerTest : public ::testing::TestWithParam<TowerCase> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        std::tie(family, device) = GetParam();
        rows.emplace(family);
        lora = golden("families/" + family) / "tower_lora";
    }
    fs::path model_path() const { return unpacked(rows->set / "model"); }
    bool tiled() const { return family == "mllama"; }
    model::LoadRequest request() const { return tiled() ? seeing_tiles(device) : seeing(device, at::kFloat); }
    std::shared_ptr<const formats::WeightFile> file() const {
        return std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model_path().string()));
    }
    /// A new adapter as options ask for it.
    model::LoadRequest asked() const {
        model::LoadRequest request = this->request();
        request.trains = request.sizes.training = true;
        request.lora = spec::LoraSpec{
            .r = 4, .lora_alpha = 8, .target_modules = {"q_proj", "v_proj"}, .tower = spec::TowerTargets::all};
        return request;
    }

    std::string family, device;
    std::optional<TowerRows> rows;
    fs::path lora;
};

}  // namespace unsloth::test
