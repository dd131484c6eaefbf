#include "serve/digest.h"

#include <openssl/evp.h>

#include "unsloth/core/error.h"

namespace unsloth::serve {

std::array<std::byte, 32> sha256(std::string_view bytes) {
    std::array<std::byte, 32> digest{};
    const int done = ::EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                                  ::EVP_sha256(), nullptr);
    UNSLOTH_CHECK(done == 1, "SHA-256 failed");
    return digest;
}

}  // namespace unsloth::serve
