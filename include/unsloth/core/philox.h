// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). The same (key, counter) gives the same four words on the CPU and on the GPU, so a random
// element is named by what it belongs to and never by when or where it is drawn. C++17, usable from .cu files.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define UNSLOTH_HD __host__ __device__
#else
#define UNSLOTH_HD
#endif

namespace unsloth {

struct PhiloxWords {
    uint32_t w[4];
};

UNSLOTH_HD inline PhiloxWords philox4x32(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2,
                                         uint32_t c3) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
        const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
        const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
        const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
        c1 = static_cast<uint32_t>(p1);
        c3 = static_cast<uint32_t>(p0);
        c0 = n0;
        c2 = n2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return PhiloxWords{{c0, c1, c2, c3}};
}

/// A word as a float in [0, 1) with 24 bits.
UNSLOTH_HD inline float unit_float(uint32_t word) {
    return static_cast<float>(word >> 8) * 5.9604644775390625e-8f;
}

/// Names a dropout element: the key is the run's seed, the counter is
/// {source row, token in the row, site, channel / 4}; the word index is channel % 4.
/// `site` = (epoch << 16) | (layer << 3) | projection, so that every epoch draws its own masks.
UNSLOTH_HD inline uint32_t dropout_site(uint32_t epoch, uint32_t layer, uint32_t projection) {
    return (epoch << 16) | (layer << 3) | projection;
}

/// The site of the noise on embeddings: a layer's projections are fewer than 7.
UNSLOTH_HD inline uint32_t noise_site(uint32_t epoch) {
    return dropout_site(epoch, 0, 7);
}

}  // namespace unsloth
