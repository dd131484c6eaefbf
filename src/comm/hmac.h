// Message authentication for the ranks' store: HMAC-SHA-256 (RFC 2104) by libcrypto, and random nonces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

struct evp_mac_ctx_st;  // libcrypto's EVP_MAC_CTX

namespace unsloth::comm {

using Bytes = std::span<const uint8_t>;
using Digest = std::array<uint8_t, 32>;

inline Bytes bytes_of(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// runtime Error where libcrypto has no HMAC-SHA-256.
class Hmac {
  public:
    explicit Hmac(Bytes key);
    Hmac(const Hmac& other);  ///< continues from the same bytes
    Hmac& add(Bytes bytes);
    Digest finish();  ///< to be called once

  private:
    struct Free {
        void operator()(evp_mac_ctx_st* context) const;
    };
    std::unique_ptr<evp_mac_ctx_st, Free> context_;
};

/// In constant time.
bool same(const Digest& a, const Digest& b);

/// From the kernel; runtime Error if it gives none.
Digest random_bytes();

}  // namespace unsloth::comm
