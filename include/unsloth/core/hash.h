// Hashes that tell contents apart (XXH3): fast, not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace unsloth {

/// A hash of bytes that come in pieces; how they are cut makes no difference.
class ContentHash {
  public:
    ContentHash();
    ~ContentHash();
    ContentHash(const ContentHash&) = delete;
    ContentHash& operator=(const ContentHash&) = delete;

    void add(std::string_view bytes);
    /// Followed by its length, so that two texts differ from their concatenation.
    void add_field(std::string_view text);
    std::string hex() const;  ///< 128 bits, 32 digits
    uint64_t word() const;    ///< 64 bits of them

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace unsloth
