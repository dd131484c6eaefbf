#include "comm/hmac.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

constexpr std::array<uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t* bytes) {
    return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
           static_cast<uint32_t>(bytes[2]) << 8 | static_cast<uint32_t>(bytes[3]);
}

}  // namespace

void Sha256::block(const uint8_t* bytes) {
    std::array<uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(bytes + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
        const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
        const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
        const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                            round_constants[i] + w[i];
        const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> add{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::add(Bytes bytes) {
    total_ += bytes.size();
    if (held_ > 0) {
        const std::size_t taken = std::min(bytes.size(), partial_.size() - held_);
        std::copy_n(bytes.begin(), taken, partial_.begin() + static_cast<std::ptrdiff_t>(held_));
        held_ += taken;
        bytes = bytes.subspan(taken);
        if (held_ < partial_.size()) return;
        block(partial_.data());
        held_ = 0;
    }
    for (; bytes.size() >= partial_.size(); bytes = bytes.subspan(partial_.size())) block(bytes.data());
    std::copy(bytes.begin(), bytes.end(), partial_.begin());
    held_ = bytes.size();
}

Digest Sha256::finish() {
    const uint64_t bits = 8 * total_;
    std::array<uint8_t, 72> tail{0x80};
    const std::size_t zeros = (held_ < 56 ? 56 : 120) - held_;
    for (std::size_t i = 0; i < 8; ++i) tail[zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    add({tail.data(), zeros + 8});
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i)
        digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

Hmac::Hmac(Bytes key) {
    std::array<uint8_t, 64> pad{};
    if (key.size() > pad.size()) {
        Sha256 hash;
        hash.add(key);
        const Digest short_key = hash.finish();
        std::copy(short_key.begin(), short_key.end(), pad.begin());
    } else {
        std::copy(key.begin(), key.end(), pad.begin());
    }
    for (uint8_t& byte : pad) byte ^= 0x36;
    inner_.add(pad);
    for (uint8_t& byte : pad) byte ^= 0x36 ^ 0x5c;
    outer_.add(pad);
}

Hmac& Hmac::add(Bytes bytes) {
    inner_.add(bytes);
    return *this;
}

Digest Hmac::finish() {
    outer_.add(inner_.finish());
    return outer_.finish();
}

bool same(const Digest& a, const Digest& b) {
    uint8_t difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
    return difference == 0;
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
