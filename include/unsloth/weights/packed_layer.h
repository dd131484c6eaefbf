// A layer's stored weights as one piece of memory, with a table of each part's position in it: what is planned, sent to
// other processes and, where it is stored elsewhere, fetched as a whole.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <unordered_map>

namespace unsloth::weights {

class PackedLayer {
  public:
    /// Names are unique (CheckError). Parts start at multiples of 512 bytes, as buffers of a plan do.
    void add(const std::string& name, at::ScalarType type, int64_t elements);
    int64_t bytes() const { return bytes_; }
    /// What is added from now on is small: kept in memory where the image itself is left on the disk.
    void begin_rest() { rest_ = bytes_; }
    int64_t rest() const { return rest_; }  ///< where it begins
    int64_t offset(const std::string& name) const;
    /// A part as a vector in `memory`, which is the image: uint8 [bytes()]. CheckError for a name that was not added.
    at::Tensor part(const at::Tensor& memory, const std::string& name) const;

  private:
    struct Part {
        at::ScalarType type;
        int64_t offset = 0, bytes = 0;
    };
    std::unordered_map<std::string, Part> parts_;
    int64_t bytes_ = 0, rest_ = 0;
};

}  // namespace unsloth::weights
