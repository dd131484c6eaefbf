#include "comm/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

void require(bool done) {
    if (!done) throw Error("library.failed", "libcrypto cannot make an HMAC with SHA-256", "Check its installation.");
}

}  // namespace

void Hmac::Free::operator()(evp_mac_ctx_st* context) const {
    EVP_MAC_CTX_free(context);
}

Hmac::Hmac(Bytes key) {
    EVP_MAC* const mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    context_.reset(mac != nullptr ? EVP_MAC_CTX_new(mac) : nullptr);  // holds a reference of its own
    EVP_MAC_free(mac);
    require(context_ != nullptr);
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
    // A null key would mean "the one before".
    static constexpr uint8_t none = 0;
    require(EVP_MAC_init(context_.get(), key.empty() ? &none : key.data(), key.size(), params) == 1);
}

Hmac::Hmac(const Hmac& other) : context_(EVP_MAC_CTX_dup(other.context_.get())) {
    require(context_ != nullptr);
}

Hmac& Hmac::add(Bytes bytes) {
    require(EVP_MAC_update(context_.get(), bytes.data(), bytes.size()) == 1);
    return *this;
}

Digest Hmac::finish() {
    Digest digest;
    std::size_t length = 0;
    require(EVP_MAC_final(context_.get(), digest.data(), &length, digest.size()) == 1 && length == digest.size());
    return digest;
}

bool same(const Digest& a, const Digest& b) {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest random_bytes() {
    Digest bytes;
    ssize_t got;
    while ((got = ::getrandom(bytes.data(), bytes.size(), 0)) < 0 && errno == EINTR) {
    }
    if (got != static_cast<ssize_t>(bytes.size()))
        throw Error("process.system-call", cat("the kernel gives no random numbers: ", std::strerror(errno)));
    return bytes;
}

}  // namespace unsloth::comm
