#include "comm/nccl_group.h"

#if UNSLOTH_CUDA
#define USE_C10D_NCCL  // LibTorch is built with it; its header is empty otherwise
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/interfaces.h"
#include "comm/rank_store.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

class NcclGroup final : public StoreBackedGroup {
  public:
    NcclGroup(std::unique_ptr<Exchange> exchange, at::Device device) : StoreBackedGroup(std::move(exchange)) {
        // Our monitor names what is late and ends it; c10d's watchdog would end the process with a dump instead.
        for (const char* name :
             {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT"})
            ::setenv(name, "0", /*overwrite=*/0);
        require_interfaces();
        std::atomic<bool> made{false};
        // The watch begins before there is something to abort: who does not come, or a network that hangs, ends the
        // process with the monitor's words.
        this->exchange().monitor().begin("NCCL's communicators", [&made] { return made.load(); });
        const auto ends = c10::make_scope_exit([&] {
            made = true;
            this->exchange().monitor().forget_done();
        });
        try {
            connect(device);
        } catch (const Error&) {
            throw;
        } catch (const std::exception& error) {
            this->exchange().monitor().check();
            throw runtime_failure(cat("NCCL does not connect the ranks: ", nccl_reason(error.what())), nccl_advice());
        }
    }
    ~NcclGroup() override {
        exchange().monitor().on_failure(nullptr);
        abort();
    }

    void all_reduce(const at::Tensor& sum, const std::string& what) override {
        issue(sum, what)->wait();  // the current stream waits, not the host
    }

    void all_reduce_beside(const at::Tensor& sum, const std::function<void()>& after,
                           const std::string& what) override {
        if (!beside_) beside_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, sum.device().index());
        const c10::cuda::CUDAStreamGuard guard(*beside_);
        after();
        under_way_.push_back(issue(sum, what));
    }

    void join() override {
        for (const auto& work : under_way_) work->wait();
        under_way_.clear();
    }

    void broadcast_here(const at::Tensor& values, int root, const std::string& what) override {
        UNSLOTH_CHECK(values.is_cuda() && values.is_contiguous(), what, ": broadcast takes contiguous values of a GPU");
        if (ranks_here().size() == 1 || values.numel() == 0) return;
        // As bytes, whatever the type: NCCL does not know all of them.
        std::vector<at::Tensor> tensors{values.view({-1}).view(at::kByte)};
        check();
        c10d::BroadcastOptions options;
        options.rootRank = root;
        begin(here_->broadcast(tensors, options), what)->wait();
    }

  private:
    using Work = c10::intrusive_ptr<c10d::Work>;
    using Nccl = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

    /// Makes the communicators, and shows here, not in the middle of the first step, when they cannot be made.
    void connect(at::Device device) {
        const auto store = c10::make_intrusive<RankStore>(exchange().meeting(), exchange().timeout());
        nccl_ = make_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank(), size());
        const int here = static_cast<int>(ranks_here().size());
        here_ = here == size() || here == 1
                    ? nccl_
                    : make_nccl(c10::make_intrusive<c10d::PrefixStore>(cat("machine/", ranks_here().front()), store),
                                place_here(), here);
        exchange().monitor().on_failure([this] { abort(); });
        const at::Tensor one = at::ones({1}, at::TensorOptions(at::kFloat).device(device));
        all_reduce(one, "NCCL's first sum");
        const float sum = one.item<float>();
        check();
        if (sum != static_cast<float>(size())) throw runtime_failure(cat("NCCL's sum of ", size(), " ones is ", sum));
    }

    static Nccl make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
        return c10::make_intrusive<c10d::ProcessGroupNCCL>(
            store, rank, size, c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true));
    }
    void abort() {
        if (nccl_) nccl_->abort();
        if (here_ && here_ != nccl_) here_->abort();
    }
    Work begin(Work work, const std::string& what) {
        exchange().monitor().begin(what, [work] { return work->isCompleted(); });
        return work;
    }

    /// NCCL's own stream takes it up after the work of the current one.
    Work issue(const at::Tensor& sum, const std::string& what) {
        UNSLOTH_CHECK(sum.is_cuda() && sum.scalar_type() == at::kFloat && sum.is_contiguous(), what,
                      ": all_reduce takes contiguous fp32 of a GPU");
        std::vector<at::Tensor> tensors{sum};
        check();
        return begin(nccl_->allreduce(tensors), what);
    }

    Nccl nccl_, here_;  ///< of all ranks, and of those of this machine: the same where there is one machine, or nobody
                        ///< else here
    std::optional<c10::cuda::CUDAStream> beside_;
    std::vector<Work> under_way_;
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device) {
    return std::make_unique<NcclGroup>(std::move(exchange), device);
}

}  // namespace unsloth::comm
#endif
