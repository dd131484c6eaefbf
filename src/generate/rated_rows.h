// Log-probabilities of given rows of logits: of a known token each, and of the likeliest.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace unsloth::generate {

class RatedRows {
  public:
    /// A row of the logits that rate() gets next, the id that it is asked for, and how many of the likeliest.
    void add(int64_t row, int32_t id, int64_t top) {
        rows_.push_back(row);
        ids_.push_back(id);
        top_ = std::max(top_, top);
    }

    /// Of the rows added since the last call. In fp32, some rows at a time: the copies are in no memory plan.
    void rate(const at::Tensor& logits_CV) {
        constexpr std::size_t at_once = 16;
        const int64_t top = std::min(std::max<int64_t>(top_, 1), logits_CV.size(1));
        for (std::size_t first = 0; first < rows_.size(); first += at_once) {
            const std::size_t last = std::min(rows_.size(), first + at_once);
            const auto part = [&](const std::vector<int64_t>& of) {
                const std::vector<int64_t> some(of.begin() + static_cast<std::ptrdiff_t>(first),
                                                of.begin() + static_cast<std::ptrdiff_t>(last));
                return at::tensor(some, at::kLong).to(logits_CV.device());
            };
            const at::Tensor logits = logits_CV.index_select(0, part(rows_)).to(at::kFloat);
            const at::Tensor all = at::logsumexp(logits, {1}, /*keepdim=*/true);
            const auto [highest, ids] = logits.topk(top, 1);
            logprobs_.push_back((logits.gather(1, part(ids_).unsqueeze(1)) - all).squeeze(1));
            top_logprobs_.push_back(highest - all);
            top_ids_.push_back(ids);
        }
        rows_.clear();
        ids_.clear();
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
    std::vector<int64_t> rows_, ids_;
    int64_t top_ = 0;
    std::vector<at::Tensor> logprobs_, top_ids_, top_logprobs_;
};

}  // namespace unsloth::generate
