// What the tests of quant and optimizer share: golden tensors as at::Tensor, sha256 of bytes, a step's
// scalars on a device.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "common/files.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/ops/context.h"
#include "unsloth/ops/dtype.h"

namespace unsloth::golden {

/// A copy of the tensor.
inline at::Tensor tensor(const formats::SafetensorsFile& file, const std::string& name) {
    const formats::TensorView& view = file.at(name);
    at::Tensor result = at::empty(view.shape, ops::scalar_type(view.dtype));
    std::memcpy(result.data_ptr(), view.data.data(), view.data.size());
    return result;
}

/// FIPS 180-4.
inline std::string sha256(const void* bytes, std::size_t size) {
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
    std::string message(static_cast<const char*>(bytes), size);
    message.push_back('\x80');
    while (message.size() % 64 != 56) message.push_back('\0');
    for (int i = 7; i >= 0; --i) message.push_back(static_cast<char>((uint64_t{size} * 8) >> (8 * i)));
    for (std::size_t at = 0; at < message.size(); at += 64) {
        std::array<uint32_t, 64> w{};
        for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<uint8_t>(message[at + i]);
        for (std::size_t i = 16; i < 64; ++i)
            w[i] = w[i - 16] + w[i - 7] + (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
                   (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
        auto [a, b, c, d, e, f, g, hh] = h;
        for (std::size_t i = 0; i < 64; ++i) {
            const uint32_t t1 =
                hh + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
            const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            hh = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, hh};
        for (std::size_t i = 0; i < 8; ++i) h[i] += add[i];
    }
    std::string text;
    for (const uint32_t word : h)
        for (int shift = 28; shift >= 0; shift -= 4) text.push_back("0123456789abcdef"[word >> shift & 15]);
    return text;
}

inline std::string sha256(const at::Tensor& tensor) {
    const at::Tensor bytes = tensor.cpu().contiguous();
    return sha256(bytes.const_data_ptr(), bytes.nbytes());
}

/// Bit equality, so that NaNs and signs of zero count.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
    return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
           std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// Step scalars and outcome where the context's device reads them.
class StepState {
  public:
    explicit StepState(ops::Context& ctx) : ctx_(ctx) {
        scalars.loss_scale = 1;
        scalars.max_grad_norm = 1;
        outcome.clip = 1;
        outcome.first_bad_site = spec::all_finite;
        store();
    }
    StepState(const StepState&) = delete;
    StepState& operator=(const StepState&) = delete;

    spec::StepScalars scalars{};
    spec::StepOutcome outcome{};

    /// Makes `scalars` and `outcome` visible to the device.
    void store() {
        at::Tensor host = at::empty({256}, at::kByte);
        std::memcpy(host.data_ptr(), &scalars, sizeof scalars);
        std::memcpy(host.data_ptr<uint8_t>() + 128, &outcome, sizeof outcome);
        memory_ = host.to(ctx_.device());
        auto* base = memory_.data_ptr<uint8_t>();
        ctx_.scalars = reinterpret_cast<const spec::StepScalars*>(base);
        ctx_.outcome = reinterpret_cast<spec::StepOutcome*>(base + 128);
    }
    /// Reads `outcome` back.
    void load() {
        const at::Tensor host = memory_.cpu();
        std::memcpy(&outcome, host.const_data_ptr<uint8_t>() + 128, sizeof outcome);
    }

  private:
    ops::Context& ctx_;
    at::Tensor memory_;
};

}  // namespace unsloth::golden
