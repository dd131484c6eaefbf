#include "comm/nccl_group.h"

#if UNSLOTH_CUDA
#define USE_C10D_NCCL  // LibTorch is built with it; its header is empty otherwise
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>

#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

class NcclGroup final : public StoreBackedGroup {
  public:
    NcclGroup(std::unique_ptr<Exchange> exchange, at::Device device)
        : StoreBackedGroup(std::move(exchange)) {
        // Our monitor names what is late and ends it; c10d's watchdog would end the process with a dump instead.
        for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) ::setenv(name, "0", /*overwrite=*/0);
        auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
        nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(this->exchange().store(), rank(), size(), std::move(options));
        this->exchange().monitor().on_failure([this] { nccl_->abort(); });
        // Makes the communicator, and shows here, not in the middle of the first step, when it cannot be made.
        const at::Tensor one = at::ones({1}, at::TensorOptions(at::kFloat).device(device));
        all_reduce(one, "NCCL's first sum");
        const float sum = one.item<float>();
        check();
        if (sum != static_cast<float>(size())) throw runtime_failure(cat("NCCL's sum of ", size(), " ones is ", sum));
    }
    ~NcclGroup() override {
        exchange().monitor().on_failure(nullptr);
        nccl_->abort();
    }

    void all_reduce(const at::Tensor& sum, const std::string& what) override {
        UNSLOTH_CHECK(sum.is_cuda() && sum.scalar_type() == at::kFloat && sum.is_contiguous(), what, ": all_reduce takes contiguous fp32 of a GPU");
        std::vector<at::Tensor> tensors{sum};
        check();
        const c10::intrusive_ptr<c10d::Work> work = nccl_->allreduce(tensors);
        exchange().monitor().begin(what, [work] { return work->isCompleted(); });
        work->wait();  // the current stream waits, not the host
    }

  private:
    c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device) {
    return std::make_unique<NcclGroup>(std::move(exchange), device);
}

}  // namespace unsloth::comm
#endif
