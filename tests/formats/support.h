// What the tests of this module share: golden paths, a scratch folder, crafted files, SHA-256.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/safetensors.h"

namespace unsloth::test {

namespace fs = std::filesystem;

inline nlohmann::json golden_json(const std::string& name) {
    return nlohmann::json::parse(read_file(golden(name)));
}

inline void write_text(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

/// A safetensors file of any header, valid or not.
inline void write_raw(const fs::path& path, uint64_t length, const std::string& header, const std::string& data) {
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    write_text(path, bytes + header + data);
}
inline void write_raw(const fs::path& path, const std::string& header, const std::string& data) {
    write_raw(path, header.size(), header, data);
}

/// Runs `action`, which must throw such an Error whose message holds every one of `words`.
template <class Action>
void expect_error(Expected expected, const std::vector<std::string>& words, const Action& action) {
    try {
        action();
        ADD_FAILURE() << "accepted; expected an error about " << (words.empty() ? "" : words[0]);
    } catch (const Error& error) {
        expected.check(error);
        for (const std::string& word : words)
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
                << "'" << word << "' is not in: " << error.what();
    }
}
template <class Action>
void expect_input_error(const std::vector<std::string>& words, const Action& action) {
    expect_error(ErrorKind::input, words, action);
}

/// SHA-256 (FIPS 180-4), for comparing with the golden hashes.
inline std::string sha256(std::span<const std::byte> message) {
    static constexpr std::array<uint32_t, 64> k = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::array<uint32_t, 8> h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::vector<uint8_t> bytes(message.size());
    if (!message.empty()) std::memcpy(bytes.data(), message.data(), message.size());
    const uint64_t bits = static_cast<uint64_t>(bytes.size()) * 8;
    bytes.push_back(0x80);
    while (bytes.size() % 64 != 56) bytes.push_back(0);
    for (int i = 7; i >= 0; --i) bytes.push_back(static_cast<uint8_t>(bits >> (8 * i)));
    const auto rotate = [](uint32_t x, int n) { return x >> n | x << (32 - n); };
    for (std::size_t block = 0; block < bytes.size(); block += 64) {
        std::array<uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i)
            w[i] = static_cast<uint32_t>(bytes[block + 4 * i]) << 24 |
                   static_cast<uint32_t>(bytes[block + 4 * i + 1]) << 16 |
                   static_cast<uint32_t>(bytes[block + 4 * i + 2]) << 8 | bytes[block + 4 * i + 3];
        for (std::size_t i = 16; i < 64; ++i)
            w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
                   (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
        auto s = h;
        for (std::size_t i = 0; i < 64; ++i) {
            const uint32_t t1 = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) +
                                ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            const uint32_t t2 = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) +
                                ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) h[i] += s[i];
    }
    std::string text;
    for (const uint32_t word : h)
        for (int i = 28; i >= 0; i -= 4) text += "0123456789abcdef"[word >> i & 15];
    return text;
}

template <class T>
std::string sha256(const std::vector<T>& values) {
    return sha256(std::as_bytes(std::span(values)));
}

}  // namespace unsloth::test
