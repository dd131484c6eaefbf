// Chooses the operands and the tiling of the LoRA GEMMs. No device is queried.
#include <algorithm>
#include <cstdint>

#include "kernels/lora_gemm.h"

namespace unsloth::kernels {
namespace {

constexpr int64_t most_rank = int64_t{1} << 20;  // a launch has more groups of columns

bool aligned_16(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}
bool rows_of_16_bytes(const void* data, int64_t stride) {
    return data != nullptr && aligned_16(data) && stride % 8 == 0;
}
bool rows_of_16_bytes(const ConstMatrix& m) {
    return rows_of_16_bytes(m.data, m.stride);
}
bool rows_of_16_bytes(const Matrix& m) {
    return rows_of_16_bytes(m.data, m.stride);
}

bool common(int64_t tokens, spec::DType type, int compute_major) {
    return compute_major >= 9 && (type == spec::DType::bf16 || type == spec::DType::f16) && tokens >= 0 &&
           tokens <= int64_t{1} << 30;
}

/// Whether rows of `columns` codes are supported.
bool takes(const CodedRows& x, int64_t columns, spec::DType type) {
    return type == spec::DType::bf16 && columns % 16 == 0 && aligned_16(x.codes) && x.scales != nullptr &&
           aligned_16(x.scales) && x.scale_stride % 4 == 0 && aligned_16(x.factors);
}

int64_t power_of_two_within(int64_t n) {
    int64_t power = 1;
    while (2 * power <= n) power *= 2;
    return power;
}

}  // namespace

bool lora_supports(const LoraProjection& p, int compute_major) {
    const bool coded = p.codes.codes != nullptr, owned = p.token_owner != nullptr;
    return common(p.tokens, p.type, compute_major) && p.r >= 8 && p.r <= most_rank && p.r % 8 == 0 && p.k >= 8 &&
           p.k % 8 == 0 && owned == (p.column_owner != nullptr) &&
           (coded ? takes(p.codes, p.k, p.type) && p.r <= most_projected_rank && !owned : rows_of_16_bytes(p.x)) &&
           rows_of_16_bytes(p.a) && rows_of_16_bytes(p.u) && (p.copy.data == nullptr || rows_of_16_bytes(p.copy));
}

LoraPlan lora_plan(const LoraProjection& p) {
    if (p.codes.codes != nullptr) {
        // Tall tiles read A less often; the reduction is cut up where there are too few of them. More than 16 columns
        // leave room for one block a multiprocessor, and part of a chip for few clusters of eight.
        const int tile = p.tokens <= 256 ? 0 : p.tokens < 2048 || p.r > 48 ? 1 : 2;
        const int64_t tiles = (p.tokens + (16 << tile) - 1) / (16 << tile), places = p.r <= 16 ? 264 : 132,
                      most = tile == 0 || p.r <= 16 ? 8 : 4;
        return {.tile = tile,
                .cluster = static_cast<int>(power_of_two_within(std::clamp<int64_t>(places / tiles, 1, most))),
                .splits = 1};
    }
    // Decoding: a value each, so that nothing waits for another block.
    if (p.tokens <= most_tokens_by_columns) return {.tile = 2, .cluster = 1, .splits = 1};
    // Few tokens: short tiles, and the reduction spread over as many blocks as a cluster holds.
    if (p.tokens <= 256) return {.tile = 0, .cluster = 8, .splits = 1};
    return {.tile = 1, .cluster = 4, .splits = 1};
}

bool lora_supports(const LoraBackward& p, int compute_major) {
    if (!common(p.tokens, p.type, compute_major) || p.part_count < 1 || p.part_count > most_lora_parts) return false;
    for (int i = 0; i < p.part_count; ++i) {
        const LoraPart& part = p.parts[i];
        if (part.r % 8 != 0 || part.r > most_part_rank || part.r_begin % 8 != 0 || part.rank > part.r) return false;
        if (part.n % 8 != 0 || part.n_begin % 8 != 0 || (part.rank > 0 && part.db == nullptr)) return false;
        const int64_t step = p.codes.format == CodeFormat::int8 ? int8_block : 16;
        if (p.codes.codes != nullptr && part.r > 0 && (part.n % 16 != 0 || part.n_begin % step != 0)) return false;
    }
    return p.r >= 8 && p.r % 8 == 0 &&
           (p.codes.codes != nullptr ? takes(p.codes, p.n, p.type) : rows_of_16_bytes(p.dy)) && rows_of_16_bytes(p.v) &&
           rows_of_16_bytes(p.u, p.r) && p.b.data != nullptr;
}

LoraPlan lora_plan(const LoraBackward& p, int multiprocessors) {
    int64_t widest = 0;
    for (int i = 0; i < p.part_count; ++i) widest = std::max(widest, p.parts[i].r);
    const auto strips = [&](int64_t columns) {
        int64_t count = 0;
        for (int i = 0; i < p.part_count; ++i)
            if (p.parts[i].r > 0) count += (p.parts[i].n + columns - 1) / columns;
        return std::max<int64_t>(count, 1);
    };
    const int64_t steps = std::max<int64_t>((p.tokens + 15) / 16, 1);
    // 512 columns or 256. Codes leave registers for no more than these where dB has 32.
    const bool few_registers = p.codes.codes != nullptr && widest > 16;
    const int narrow = !few_registers && (p.tokens > 256 || strips(512) > 32) ? 1 : 0;
    if (p.tokens <= 1024) {
        // One cluster a strip, two steps or more a block: dB needs no second sum.
        const int64_t slots = p.tokens <= 256 ? multiprocessors : 2 * multiprocessors;
        const int64_t most = std::min(
            {int64_t{8}, std::max<int64_t>(steps / 2, 1), std::max<int64_t>(slots / strips(256 << narrow), 1)});
        return {.tile = narrow, .cluster = static_cast<int>(power_of_two_within(most)), .splits = 1};
    }
    // One block a multiprocessor: wide strips, so that v has few parts; pairs of blocks, which every part of the chip
    // can place, halve dB's. A power of two measured better than the last multiprocessor's use; where it would leave a
    // third of them idle, three blocks or more pairs.
    const int wide = widest > 16 ? narrow : strips(1024) > 16 ? 2 : 3;
    const int64_t count = strips(std::min(256 << wide, 1024));
    const int64_t most = std::max<int64_t>(multiprocessors / count, 2);
    int64_t blocks = power_of_two_within(most);
    const int64_t places = (blocks * count + multiprocessors - 1) / multiprocessors * multiprocessors;
    if (3 * blocks * count <= 2 * places) blocks = most <= 3 ? 3 : most / 2 * 2;
    const int64_t within = std::min(blocks, power_of_two_within(steps));
    // A part of the chip has 16 multiprocessors or 18: all have room for five clusters of three in 16.
    const bool alone = within == 3 && 16 * count > 5 * places;
    const int64_t cluster = alone ? 1 : within <= 4 ? within : 2;
    return {.tile = wide, .cluster = static_cast<int>(cluster), .splits = static_cast<int>(within / cluster)};
}

}  // namespace unsloth::kernels
