// Every tensor of a tower's weights with its buffer: what is planned and what is loaded follow from this list.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "unsloth/weights/vision_weights.h"

namespace unsloth::weights {

/// A buffer, and the tensors of the folder that are its rows, by their names below the tower.
struct VisionBuffer {
    std::string name;
    std::vector<int64_t> shape;
    at::ScalarType dtype;
    std::vector<std::string> from;
    at::Tensor* to;
    std::string gate = {};  ///< the values are multiplied by this tensor's tanh; empty: by nothing
    int64_t rows_each = 0;  ///< that a tensor has here, its own and zeros; 0: its own
    int64_t columns = 0;    ///< of the tensors, to which zeros are added here; 0: as many as the buffer's
    /// Whose weight stays in 4 bit; nullptr: the buffer has the values.
    VisionLinear* in_4bit = nullptr;
    int64_t bytes() const { return c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype)); }
};

class VisionList {
  public:
    using Sources = std::vector<formats::TensorSource>;
    /// `sources`: ModelTensors::vision; empty: all of 16/32 bits.
    VisionList(const spec::VisionSpec& spec, at::ScalarType dtype, const Sources& sources, VisionWeights& weights);

    const std::vector<VisionBuffer>& buffers() const { return buffers_; }
    const formats::TensorSource& source(const std::string& name) const { return *sources_.at(name); }

    /// A linear, and the folder's linears that make up its rows, `rows_each` each where there are several.
    struct Linear {
        VisionLinear* to;
        std::vector<std::string> modules;
        int64_t rows_each = 0;
        std::string gate = {};  ///< as VisionBuffer's
    };
    const std::vector<Linear>& linears() const { return linears_; }
    /// Of the largest weight in the compute type that stays in 4 bit; 0: there is none.
    int64_t expanded_bytes() const;

  private:
    void patches(VisionWeights& weights);
    void tiles(const spec::TilesSpec& tiles, VisionWeights& weights);
    void add(at::Tensor& to, std::vector<std::string> from, at::ScalarType dtype);
    void linear(VisionLinear& to, const std::vector<std::string>& modules);
    void unbiased(VisionLinear& to, const std::vector<std::string>& modules);
    void norm(VisionNorm& to, const std::string& module);
    void block(const std::string& name, VisionBlock& to);
    void gated_mlp(const std::string& name, VisionBlock& to);
    void tile_block(const std::string& name, VisionBlock& to);
    void merger(const std::string& name, VisionMerger& to);
    void keep_in_4bit(const VisionLinear* but);

    const spec::VisionSpec& spec_;
    at::ScalarType dtype_;
    std::map<std::string, std::vector<int64_t>> shapes_;
    std::map<std::string, const formats::TensorSource*> sources_;
    std::vector<VisionBuffer> buffers_;
    std::vector<Linear> linears_;
};

}  // namespace unsloth::weights
