// Attention of one head on the CPU, without a mask: what attention within images and over ranges share.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu_rows.h"

namespace unsloth::ops::cpu {

/// Rows [begin, end) of one head, as fp32.
class HeadRows {
  public:
    HeadRows(const Rows& rows, int64_t head, int64_t begin, int64_t end)
        : columns_(rows.columns()), values_(static_cast<size_t>((end - begin) * columns_)) {
        std::vector<float> scratch(static_cast<size_t>(columns_));
        for (int64_t i = begin; i < end; ++i)
            std::copy_n(rows.read(i, head, scratch.data()), columns_, values_.data() + (i - begin) * columns_);
    }
    const float* operator[](int64_t i) const { return values_.data() + i * columns_; }

  private:
    int64_t columns_;
    std::vector<float> values_;
};

inline float dot(const float* a, const float* b, int64_t count) {
    return lane_sum(count, [&](int64_t c) { return a[c] * b[c]; });
}

/// Queries [q_begin, q_end) of a head over the head's `keys` rows of key and value. lse_T: [T], of the head; nullptr:
/// not wanted.
inline void attend(float scale, int64_t q_begin, int64_t q_end, int64_t head, int64_t keys, const HeadRows& key,
                   const HeadRows& value, const Rows& q, const Rows& out, float* lse_T = nullptr) {
    const int64_t d = q.columns();
    std::vector<float> scratch(static_cast<size_t>(d)), sum(static_cast<size_t>(d)), scores(static_cast<size_t>(keys));
    for (int64_t row = q_begin; row < q_end; ++row) {
        const float* const query = q.read(row, head, scratch.data());
        for (int64_t j = 0; j < keys; ++j) scores[static_cast<size_t>(j)] = scale * dot(query, key[j], d);
        const float most = *std::ranges::max_element(scores);
        for (float& score : scores) score = std::exp(score - most);
        const float whole = lane_sum(keys, [&](int64_t j) { return scores[static_cast<size_t>(j)]; });
        std::ranges::fill(sum, 0.0F);
        for (int64_t j = 0; j < keys; ++j)
            for (int64_t c = 0; c < d; ++c) sum[static_cast<size_t>(c)] += scores[static_cast<size_t>(j)] * value[j][c];
        for (float& part : sum) part /= whole;
        out.write(row, head, sum.data());
        if (lse_T != nullptr) lse_T[row] = most + std::log(whole);
    }
}

}  // namespace unsloth::ops::cpu
