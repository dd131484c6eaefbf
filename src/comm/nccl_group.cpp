#include "comm/nccl_group.h"

#if UNSLOTH_CUDA
#define USE_C10D_NCCL  // LibTorch is built with it; its header is empty otherwise
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

class NcclGroup final : public Group {
  public:
    NcclGroup(std::unique_ptr<Exchange> exchange, at::Device device)
        : Group(exchange->rank(), exchange->size()), exchange_(std::move(exchange)) {
        auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
        options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(exchange_->timeout());
        nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(exchange_->store(), rank(), size(), std::move(options));
        // Makes the communicator, and shows here, not in the middle of the first step, when it cannot be made.
        const at::Tensor one = at::ones({1}, at::TensorOptions(at::kFloat).device(device));
        all_reduce(one, "NCCL's first sum");
        const float sum = one.item<float>();
        if (sum != static_cast<float>(size())) throw runtime_failure(cat("NCCL's sum of ", size(), " ones is ", sum));
    }
    ~NcclGroup() override { nccl_->abort(); }

    void all_reduce(const at::Tensor& sum, const std::string& what) override {
        UNSLOTH_CHECK(sum.is_cuda() && sum.scalar_type() == at::kFloat && sum.is_contiguous(), what, ": all_reduce takes contiguous fp32 of a GPU");
        std::vector<at::Tensor> tensors{sum};
        nccl_->allreduce(tensors)->wait();  // the current stream waits, not the host
    }

    std::vector<std::string> gather(const std::string& text, const std::string& what) override { return gather_text(*exchange_, text, what); }

  private:
    std::unique_ptr<Exchange> exchange_;
    c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device) {
    return std::make_unique<NcclGroup>(std::move(exchange), device);
}

}  // namespace unsloth::comm
#endif
