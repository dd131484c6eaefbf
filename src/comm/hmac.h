// Who may speak to the ranks' store: SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104), and numbers nobody can guess.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace unsloth::comm {

using Bytes = std::span<const uint8_t>;
using Digest = std::array<uint8_t, 32>;

inline Bytes bytes_of(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class Sha256 {
  public:
    void add(Bytes bytes);
    Digest finish();  ///< to be called once

  private:
    void block(const uint8_t* bytes);
    std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> partial_{};
    std::size_t held_ = 0;
    uint64_t total_ = 0;
};

class Hmac {
  public:
    explicit Hmac(Bytes key);
    Hmac& add(Bytes bytes);
    Digest finish();  ///< to be called once

  private:
    Sha256 inner_, outer_;
};

/// Takes as long whatever differs.
bool same(const Digest& a, const Digest& b);

/// From the kernel. runtime Error where it gives none.
Digest random_bytes();

}  // namespace unsloth::comm
