// Whose pixels a run needs no more, because what its tower makes of them is kept.
#pragma once

#include <string>

namespace unsloth::data {

class KeptImages {
  public:
    virtual ~KeptImages() = default;
    /// Whether the features of the image with this content (Image::content) are kept: for the rest of the run. From any
    /// thread.
    virtual bool keeps(const std::string& content) const = 0;
};

}  // namespace unsloth::data
