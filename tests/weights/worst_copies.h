// A stream of copies on the CPU that is as late, or as early, as the waits of whoever uses it allow, and that can be
// told to ignore one of them: what a GPU might do, at its worst.
#pragma once

#include <functional>
#include <vector>

#include "unsloth/ops/copy_stream.h"

namespace unsloth::test {

class WorstCopies : public ops::CopyStream {
  public:
    /// latest: a copy is done when something waits for it, and poisons its target until then. earliest: a copy is done
    /// at the wait for compute before it, of which `foreseen` (a run before, with the same calls) says what follows.
    enum class When { latest, earliest };
    struct Copied {
        at::Tensor from, to;
        int after_wait = 0;  ///< it was issued after so many waits for compute
    };
    struct Log {
        std::vector<Copied> copies;
        int waits_for_compute = 0, waits_for_copies = 0;
        int reads = 0;                     ///< counted by whoever reads what was copied
        std::vector<int> reads_at_a_wait;  ///< reads before each wait for a copy
    };

    /// The wait that is ignored: for compute, counted from 1, or for a copy, from 0; -1: none.
    WorstCopies(ops::Context& ctx, When when, Log& log, std::vector<Copied> foreseen = {},
                int without_compute_wait = -1, int without_copy_wait = -1)
        : CopyStream(ctx, 0),
          when_(when),
          log_(log),
          foreseen_(std::move(foreseen)),
          without_compute_wait_(without_compute_wait),
          without_copy_wait_(without_copy_wait) {
        if (without_compute_wait_ == 1) run_ahead(1);
    }

    void wait_for_compute() override {
        const int number = ++log_.waits_for_compute;
        if (when_ != When::earliest) return;
        // The copies behind this wait can start now; without the next wait, those behind that one too.
        run_ahead(number);
        if (number + 1 == without_compute_wait_) run_ahead(number + 1);
    }
    void copy(const at::Tensor& from, const at::Tensor& to) override {
        log_.copies.push_back({from, to, log_.waits_for_compute});
        if (when_ == When::earliest) return;  // it is done already
        to.fill_(0xFF);
        waiting_.push_back(log_.copies.back());
    }
    void mark(int number) override {
        if (static_cast<std::size_t>(number) >= marks_.size()) marks_.resize(static_cast<std::size_t>(number) + 1);
        marks_[static_cast<std::size_t>(number)] = done_ + waiting_.size();
    }
    void compute_waits(int number) override {
        log_.reads_at_a_wait.push_back(log_.reads);
        if (log_.waits_for_copies++ == without_copy_wait_ || when_ == When::earliest) return;
        while (done_ < marks_.at(static_cast<std::size_t>(number))) {
            waiting_.front().to.copy_(waiting_.front().from);
            waiting_.erase(waiting_.begin());
            ++done_;
        }
    }

  private:
    /// The copies that were issued after `number` waits for compute in the run before.
    void run_ahead(int number) {
        for (; ahead_ < foreseen_.size() && foreseen_[ahead_].after_wait <= number; ++ahead_)
            foreseen_[ahead_].to.copy_(foreseen_[ahead_].from);
    }

    When when_;
    Log& log_;
    std::vector<Copied> foreseen_;
    int without_compute_wait_, without_copy_wait_;
    std::size_t ahead_ = 0, done_ = 0;
    std::vector<Copied> waiting_;
    std::vector<std::size_t> marks_;
};

}  // namespace unsloth::test
