// The place of the parts of layers' images on the disk: in the checkpoint as they are, or in a file that is made while
// loading.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "unsloth/core/temporary.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/weights/layer_prefetcher.h"
#include "unsloth/weights/packed_layer.h"

namespace unsloth::weights {

class DiskLoading {
  public:
    explicit DiskLoading(std::optional<std::string> offload_folder) : folder_(std::move(offload_folder)) {}

    /// Takes a part of the layer's image: `values` of `source`, in its file's map or made from it. runtime Error where
    /// a file that is needed for it cannot be written, usage Error where there is no folder for one.
    void place(StreamedImage& layer, const PackedLayer& image, const std::string& part,
               const formats::TensorSource& source, const at::Tensor& values);
    /// The files that the ranges of all layers name. The one that was made has no name any more, and the disk has all
    /// of it: runtime Error where it does not take it.
    DiskFiles take_files();

  private:
    [[noreturn]] void fail_to_write() const;
    FileRange write(const formats::TensorSource& source, const at::Tensor& values);

    std::optional<std::string> folder_;
    DiskFiles files_;
    std::unique_ptr<Temporary> made_;
    int64_t end_ = 0;  ///< of what is written
};

}  // namespace unsloth::weights
