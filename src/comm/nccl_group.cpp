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
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/interfaces.h"
#include "comm/rank_store.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::comm {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using Nccl = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(Exchange& exchange, int rank, std::vector<int> ranks, const std::string& name, Nccl nccl)
        : Communicator(rank, std::move(ranks), name), exchange_(exchange), nccl_(std::move(nccl)) {}

    void all_reduce(const at::Tensor& sum, const std::string& what) override {
        issue_sum(sum, what)->wait();  // the current stream waits, not the host
    }

    void all_reduce_async(const at::Tensor& sum, const std::function<void()>& after, const std::string& what) override {
        if (!reduce_stream_)
            reduce_stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, sum.device().index());
        const c10::cuda::CUDAStreamGuard guard(*reduce_stream_);
        after();
        in_flight_.push_back(issue_sum(sum, what));
    }

    void join() override {
        for (const Work& work : in_flight_) work->wait();
        in_flight_.clear();
    }

    void reduce_scatter(const at::Tensor& values, const at::Tensor& own, const std::string& what) override {
        require_summable(values, what), require_summable(own, what);
        UNSLOTH_CHECK(values.numel() == own.numel() * size(), what, ": parts of another size");
        at::Tensor from = values, to = own;
        issue(title(what, "reduce-scatter"), [&] {
            return nccl_->_reduce_scatter_base(to, from, c10d::ReduceScatterOptions());
        })->wait();
    }

    void reduce(const at::Tensor& sum, int root, const std::string& what) override {
        require_summable(sum, what);
        if (sum.numel() == 0) return;
        std::vector<at::Tensor> tensors{sum};
        c10d::ReduceOptions options;
        options.rootRank = root;
        issue(title(what, "reduce"), [&] { return nccl_->reduce(tensors, options); })->wait();
    }

    void all_gather(const at::Tensor& own, const at::Tensor& all, const std::string& what) override {
        at::Tensor from = bytes_of(own, what), to = bytes_of(all, what);
        UNSLOTH_CHECK(to.numel() == from.numel() * size(), what, ": parts of another size");
        if (from.numel() == 0) return;
        issue(title(what, "all-gather"), [&] {
            return nccl_->_allgather_base(to, from, c10d::AllgatherOptions());
        })->wait();
    }

    void broadcast(const at::Tensor& values, int root, const std::string& what) override {
        if (size() == 1 || values.numel() == 0) return;
        std::vector<at::Tensor> tensors{bytes_of(values, what)};
        issue(title(what, "broadcast"), [&] { return spread(tensors, root); })->wait();
    }

    void send(const at::Tensor& values, int to, const std::string& what) override {
        issue_send(values, to, what)->wait();
    }
    void receive(const at::Tensor& values, int from, const std::string& what) override {
        std::vector<at::Tensor> tensors{bytes_of(values, what)};
        issue_message(title(what, "receive"), [&] {
            return size() == 2 ? spread(tensors, from) : nccl_->recv(tensors, from, /*tag=*/0);
        })->wait();
    }
    std::unique_ptr<Message> send_async(const at::Tensor& values, int to, const std::string& what) override {
        return std::make_unique<Letter>(issue_send(values, to, what));
    }

  private:
    class Letter final : public Message {
      public:
        explicit Letter(Work work) : work_(std::move(work)) {}
        void wait() override { work_->wait(); }

      private:
        Work work_;
    };

    /// As bytes, whatever the type: NCCL does not know all of them.
    static at::Tensor bytes_of(const at::Tensor& values, const std::string& what) {
        UNSLOTH_CHECK(values.is_cuda() && values.is_contiguous(), what, ": contiguous values of a GPU are expected");
        return values.view({-1}).view(at::kByte);
    }
    static void require_summable(const at::Tensor& values, const std::string& what) {
        UNSLOTH_CHECK(values.is_cuda() && values.is_contiguous() &&
                          (values.scalar_type() == at::kFloat || values.scalar_type() == at::kBFloat16),
                      what, ": sums are of contiguous fp32 or bf16 of a GPU");
    }
    /// NCCL's own stream takes it up after the work of the current one.
    template <class Call>
    Work issue(const std::string& what, const Call& call) {
        exchange_.monitor().check();
        Work work = call();
        exchange_.monitor().begin(what, [work] { return work->isCompleted(); });
        return work;
    }
    template <class Call>
    Work issue_message(const std::string& what, const Call& call) {
        exchange_.monitor().check();
        Work work = call();
        exchange_.monitor().begin_message(what, [work] { return work->isCompleted(); });
        return work;
    }
    Work issue_send(const at::Tensor& values, int to, const std::string& what) {
        std::vector<at::Tensor> tensors{bytes_of(values, what)};
        return issue_message(title(what, "send"), [&] {
            return size() == 2 ? spread(tensors, rank()) : nccl_->send(tensors, to, /*tag=*/0);
        });
    }
    /// Of two members that is a message, and c10d makes no further communicator for it, as it does for send and recv.
    Work spread(std::vector<at::Tensor>& tensors, int root) {
        c10d::BroadcastOptions options;
        options.rootRank = root;
        return nccl_->broadcast(tensors, options);
    }
    Work issue_sum(const at::Tensor& sum, const std::string& what) {
        require_summable(sum, what);
        std::vector<at::Tensor> tensors{sum};
        return issue(title(what, "all-reduce"), [&] { return nccl_->allreduce(tensors); });
    }

    Exchange& exchange_;
    Nccl nccl_;
    std::optional<c10::cuda::CUDAStream> reduce_stream_;
    std::vector<Work> in_flight_;
};

class NcclGroup final : public StoreBackedGroup {
  public:
    NcclGroup(std::unique_ptr<Exchange> exchange, at::Device device)
        : StoreBackedGroup(std::move(exchange)), device_(device) {
        // Our monitor names what is late and ends it; c10d's watchdog would end the process with a dump instead, also
        // where the end of another rank's process is an error of this one's device.
        for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
                                 "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_RETHROW_CUDA_ERRORS"})
            ::setenv(name, "0", /*overwrite=*/0);
        require_interfaces();
        store_ = c10::make_intrusive<RankStore>(this->exchange().rendezvous(), this->exchange().timeout());
        this->exchange().monitor().on_failure([this] { abort(std::launch::async | std::launch::deferred); });
        make_communicators();
    }
    ~NcclGroup() override {
        exchange().monitor().on_failure(nullptr);
        abort(std::launch::deferred);
    }

    /// Makes NCCL's communicator, and shows here, not in the middle of the first step, when that cannot be done.
    std::unique_ptr<Communicator> make_communicator(const std::vector<int>& ranks, const std::string& name) override {
        const auto made = std::make_shared<std::atomic<bool>>(false);
        // The watch begins before there is something to abort: who does not come, or a network that hangs, ends the
        // process with the monitor's words.
        exchange().monitor().begin(cat("NCCL's communicator ", name), [made] { return made->load(); });
        const auto ends = c10::make_scope_exit([&] { *made = true; });
        try {
            return connect(ranks, name);
        } catch (const Error&) {
            throw;
        } catch (const std::exception& error) {
            exchange().monitor().check();
            throw Error("rank.nccl", cat("NCCL does not connect the ranks: ", nccl_reason(error.what())),
                        nccl_advice());
        }
    }

  private:
    std::unique_ptr<Communicator> connect(const std::vector<int>& ranks, const std::string& name) {
        const int place = place_among(ranks, rank()), size = static_cast<int>(ranks.size());
        Nccl nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
            c10::make_intrusive<c10d::PrefixStore>(cat("nccl/", name, "/", ranks.front()), store_), place, size,
            c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true));
        {
            const std::lock_guard lock(mutex_);
            all_of_nccl_.push_back(nccl);
        }
        auto communicator = std::make_unique<NcclCommunicator>(exchange(), place, ranks, name, std::move(nccl));
        const at::Tensor one = at::ones({1}, at::TensorOptions(at::kFloat).device(device_));
        communicator->all_reduce(one, "NCCL's first sum");
        const float sum = one.item<float>();
        check();
        if (sum != static_cast<float>(size))
            throw Error("rank.wrong-sum", cat("NCCL's sum of ", size, " ones is ", sum));
        return communicator;
    }
    /// By a thread of the monitor's, too, which aborts all at once: while the kernels of one communicator wait on the
    /// device, the abort of another may wait for them.
    void abort(std::launch how) {
        std::vector<Nccl> all;
        {
            const std::lock_guard lock(mutex_);
            all = all_of_nccl_;
        }
        std::vector<std::future<void>> aborts;
        for (const Nccl& nccl : all) aborts.push_back(std::async(how, [&nccl] { nccl->abort(); }));
        for (std::future<void>& aborted : aborts) try {
                aborted.get();
            } catch (const std::exception& error) {
                log::debug("NCCL's abort: ", error.what());
            }
    }

    at::Device device_;
    c10::intrusive_ptr<RankStore> store_;
    std::mutex mutex_;
    std::vector<Nccl> all_of_nccl_;  ///< what is to be aborted; an abort a second time does nothing
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device) {
    return std::make_unique<NcclGroup>(std::move(exchange), device);
}

}  // namespace unsloth::comm
#endif
