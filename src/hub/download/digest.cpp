#include "hub/download/digest.h"

#include <openssl/evp.h>

#include "unsloth/core/error.h"
#include "unsloth/core/hex.h"

namespace unsloth::hub {

struct Digest::State {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(Kind kind, int64_t size) : state_(std::make_unique<State>()) {
    const EVP_MD* const type = kind == Kind::sha256 ? EVP_sha256() : EVP_sha1();
    UNSLOTH_CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, type, nullptr) == 1,
                  "libcrypto has no ", kind == Kind::sha256 ? "SHA-256" : "SHA-1");
    if (kind == Kind::git_sha1) add(cat("blob ", size) + '\0');
}

Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::add(std::string_view bytes) {
    UNSLOTH_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "libcrypto cannot hash");
}

std::string Digest::hex() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    UNSLOTH_CHECK(EVP_DigestFinal_ex(state_->context, bytes, &length) == 1, "libcrypto cannot hash");
    return unsloth::hex(std::as_bytes(std::span(bytes, length)));
}

}  // namespace unsloth::hub
