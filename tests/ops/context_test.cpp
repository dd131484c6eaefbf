#include "unsloth/ops/context.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Context, CpuHasNoStreamAndNoHandles) {
    ops::Context ctx(at::kCPU);
    EXPECT_FALSE(ctx.is_cuda());
    EXPECT_EQ(ctx.stream(), nullptr);
    EXPECT_THROW(ctx.cuda(), CheckError);
}

TEST(Context, RefusesOtherDevices) {
    EXPECT_THROW(ops::Context(at::Device("meta")), CheckError);
}

#ifndef UNSLOTH_CUDA
TEST(Context, SaysThatThisBuildHasNoCuda) {
    try {
        ops::Context ctx(at::Device("cuda:0"));
        FAIL() << "a CUDA context in a build without CUDA";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "device.no-cuda");
        EXPECT_NE(std::string(error.what()).find("UNSLOTH_CUDA=ON"), std::string::npos);
    }
}
#endif

}  // namespace
}  // namespace unsloth
