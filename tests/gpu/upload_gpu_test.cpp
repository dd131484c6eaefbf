// Ordinary host memory on its way to the device, whole and in pieces.
#include "gpu/gpu_testing.h"
#include "unsloth/ops/upload.h"

namespace unsloth {
namespace {

using UploadGpu = testing::GpuTest;

TEST_F(UploadGpu, EverySizeArrivesWhole) {
    const int64_t mib = int64_t{1} << 20;
    for (const int64_t bytes : {int64_t{1}, 4 * mib - 1, 4 * mib, 32 * mib, 32 * mib + 1, 97 * mib + 13}) {
        const at::Tensor host = at::randint(0, 256, {bytes + 3}, at::kByte).narrow(0, 3, bytes);  // aligned to nothing
        const at::Tensor expected = host.clone();
        const at::Tensor there = ops::to_device(host, at::Device(at::kCUDA));
        host.fill_(0);  // it has been read
        EXPECT_TRUE(at::equal(there.cpu(), expected)) << bytes;
    }
}

TEST_F(UploadGpu, OtherTypesAndLayoutsAreCopiedAsEver) {
    const at::Tensor host = at::randn({4096, 2048});
    const at::Tensor there = at::empty({2048, 4096}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    ops::copy_from_host(host.t(), there);
    EXPECT_TRUE(at::equal(there.cpu(), host.t().to(at::kBFloat16)));
}

}  // namespace
}  // namespace unsloth
