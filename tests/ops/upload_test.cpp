// Large values from host memory to host memory, by several threads.
#include "unsloth/ops/upload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace unsloth::ops {
namespace {

TEST(CopyFromHost, EverySizeArrivesWhole) {
    const int64_t mib = int64_t{1} << 20;
    for (const int64_t bytes : {int64_t{1}, 4 * mib - 1, 4 * mib, 9 * mib + 13}) {
        const at::Tensor from = at::randint(0, 256, {bytes + 3}, at::kByte).narrow(0, 3, bytes);  // aligned to nothing
        const at::Tensor to = at::zeros({bytes + 1}, at::kByte);
        copy_from_host(from, to.narrow(0, 0, bytes));
        EXPECT_TRUE(at::equal(to.narrow(0, 0, bytes), from)) << bytes;
        EXPECT_EQ(to[bytes].item<int>(), 0);
    }
}

TEST(CopyFromHost, OtherTypesAndLayoutsAreCopiedAsEver) {
    const at::Tensor from = at::randn({1024, 2048}), to = at::empty({2048, 1024}, at::kBFloat16);
    copy_from_host(from.t(), to);
    EXPECT_TRUE(at::equal(to, from.t().to(at::kBFloat16)));
}

}  // namespace
}  // namespace unsloth::ops
