// What a frozen tower makes of images, kept in host memory: from its second pass on, an image's features are copied to
// the device, and the tower does not run.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "unsloth/data/kept_images.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/weights/layout.h"

namespace unsloth::model {

/// Images stay in the order in which they came, as long as there is room, and none leaves. Each epoch passes over all
/// images once: where they do not fit, what was used least recently would leave just before it is needed.
class KeptFeatures final : public data::KeptImages {
  public:
    static constexpr const char* group = "image features";        ///< of the plan
    static constexpr const char* buffer = "kept image features";  ///< in host memory

    /// Where features are put: [bytes] uint8 in host memory, pinned for a CUDA device. Forgets what was there.
    void open(const at::Tensor& memory);
    bool keeps(const std::string& content) const override;
    /// Copies the image's features to `parts` on the device; false where they are not kept. Contiguous tensors of the
    /// same sizes and dtypes as keep() was given. Nothing synchronises: copies are in the order of the current stream.
    bool fetch(const std::string& content, const std::vector<at::Tensor>& parts);
    /// Copies them from the device, if there is room left. Nothing is done for an empty content.
    void keep(const std::string& content, const std::vector<at::Tensor>& parts);

    struct Counts {
        int64_t images = 0, bytes = 0;  ///< that are kept
        int64_t seen = 0, fetched = 0;  ///< images that the tower saw, and that were copied instead
    };
    Counts counts() const;

  private:
    at::Tensor part_at(int64_t offset, const at::Tensor& like) const;

    at::Tensor memory_;
    mutable std::mutex mutex_;                         ///< of what follows: batches are made by another thread
    std::unordered_map<std::string, int64_t> places_;  ///< where an image's first part begins
    Counts counts_;
};

/// Bytes that an image of this many patches (or tiles) takes there.
int64_t kept_bytes(const spec::ModelSpec& spec, const weights::LayerLayout& layout, at::ScalarType dtype,
                   int64_t patches);

}  // namespace unsloth::model
