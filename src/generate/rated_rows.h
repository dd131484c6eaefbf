// Log-probabilities of given rows of logits: of a known token each, and of the top-k tokens.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/uploaded.h"

namespace unsloth::generate {

class RatedRows {
  public:
    /// A row of the logits that rate() gets next, the id that it is asked for, and the number of top tokens; or the
    /// `listed` ids instead of these, which outlive rate().
    void add(int64_t row, int32_t id, int64_t top, std::span<const int32_t> listed = {}) {
        rows_.push_back({row, id, listed});
        if (listed.empty()) top_ = std::max(top_, top);
    }

    /// Of the rows added since the last call. In fp32, some rows at a time: the copies are in no memory plan.
    void rate(const at::Tensor& logits_CV) {
        constexpr std::size_t at_once = 16;
        for (std::size_t first = 0, last = 0; first < rows_.size(); first = last) {
            const bool listed = !rows_[first].listed.empty();
            for (last = first + 1; last < rows_.size() && last < first + at_once;) {
                if (listed || !rows_[last].listed.empty()) break;  // a list is a row's own
                ++last;
            }
            rate_some(logits_CV, std::span(rows_).subspan(first, last - first));
        }
        rows_.clear();
    }

    /// All rows in the order of add(): fp32 [rows], int64 [rows, k], fp32 [rows, k].
    void take(at::Tensor& logprobs, at::Tensor& top_ids, at::Tensor& top_logprobs) const {
        int64_t widest = 0;
        for (const at::Tensor& ids : top_ids_) widest = std::max(widest, ids.size(1));
        const auto joined = [&](const std::vector<at::Tensor>& parts) {
            std::vector<at::Tensor> wide;
            for (const at::Tensor& part : parts) wide.push_back(at::constant_pad_nd(part, {0, widest - part.size(1)}));
            return at::cat(wide).contiguous();
        };
        logprobs = at::cat(logprobs_).contiguous();
        top_ids = joined(top_ids_);
        top_logprobs = joined(top_logprobs_);
    }

  private:
    struct Row {
        int64_t row = 0;
        int32_t id = 0;
        std::span<const int32_t> listed;
    };
    void rate_some(const at::Tensor& logits_CV, std::span<const Row> some) {
        std::vector<int64_t> rows, ids;
        for (const Row& row : some) rows.push_back(row.row), ids.push_back(row.id);
        const auto there = [&](const std::vector<int64_t>& values) { return uploaded(values, logits_CV.device()); };
        const at::Tensor logits = logits_CV.index_select(0, there(rows)).to(at::kFloat);
        const at::Tensor all = at::logsumexp(logits, {1}, /*keepdim=*/true);
        logprobs_.push_back((logits.gather(1, there(ids).unsqueeze(1)) - all).squeeze(1));
        if (const std::span<const int32_t> listed = some.front().listed; !listed.empty()) {
            top_ids_.push_back(there({listed.begin(), listed.end()}).unsqueeze(0));
            top_logprobs_.push_back(logits.gather(1, top_ids_.back()) - all);
            return;
        }
        const auto [highest, best] = logits.topk(std::min(std::max<int64_t>(top_, 1), logits.size(1)), 1);
        top_logprobs_.push_back(highest - all);
        top_ids_.push_back(best);
    }

    std::vector<Row> rows_;
    int64_t top_ = 0;
    std::vector<at::Tensor> logprobs_, top_ids_, top_logprobs_;
};

}  // namespace unsloth::generate
