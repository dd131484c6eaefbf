// The hashes by which the hub knows files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace unsloth::hub {

/// SHA-256 of the bytes, or git's SHA-1 of a blob of `size` bytes.
class Digest {
  public:
    enum class Kind { sha256, git_sha1 };
    Digest(Kind kind, int64_t size);
    ~Digest();
    Digest(Digest&&) noexcept;
    Digest& operator=(Digest&&) noexcept;

    void add(std::string_view bytes);
    std::string hex();  ///< ends it

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace unsloth::hub
