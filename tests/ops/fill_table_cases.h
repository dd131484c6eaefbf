// The cases of ops/multi_tensor_copy.h, for any device.
#pragma once

#include <gtest/gtest.h>

#include "unsloth/ops/multi_tensor_copy.h"

namespace unsloth::ops::test {

inline void check_fill_table(at::Device device) {
    Context ctx(device);
    at::manual_seed(3);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const auto options = at::TensorOptions().dtype(type).device(ctx.device());
        // Odd sizes take the element-wise way, multiples of 8 the wide one.
        const at::Tensor a = at::randn({5, 37}).to(ctx.device()),
                         b = at::randn({48, 40}).to(ctx.device()).narrow(1, 8, 16),
                         c = at::randn({16, 300}).to(ctx.device()).narrow(1, 5, 264);
        const at::Tensor first = at::full({64, 80}, 7, options), second = at::full({300, 32}, 7, options);
        const std::vector<FillBlock> blocks = {
            {.source = a, .out = first.narrow(0, 0, 5).narrow(1, 3, 37)},
            {.source = b, .out = first.narrow(0, 8, 48).narrow(1, 64, 16), .scale = 0.5},
            {.source = c, .out = second.narrow(0, 0, 264).narrow(1, 0, 16), .transposed = true},
            {.source = {}, .out = second.narrow(0, 280, 10).narrow(1, 8, 24)}};
        std::vector<int64_t> elements;
        for (const FillBlock& block : blocks) elements.push_back(block.out.numel());
        const at::Tensor storage =
            at::empty({MultiTensorCopy::bytes(ctx.device(), elements)}, options.dtype(at::kByte));
        const MultiTensorCopy table(ctx, blocks, {0, 2}, storage);
        ASSERT_EQ(table.runs(), 2);
        at::Tensor expected_first = first.clone(), expected_second = second.clone();
        table.run(ctx, 1, 1);
        expected_second.narrow(0, 0, 264).narrow(1, 0, 16).copy_(c.t());
        expected_second.narrow(0, 280, 10).narrow(1, 8, 24).zero_();
        EXPECT_TRUE(first.equal(expected_first)) << "the run before was filled too";
        EXPECT_TRUE(second.equal(expected_second));
        second.fill_(7);
        table.run(ctx, 0, 2);
        expected_first.narrow(0, 0, 5).narrow(1, 3, 37).copy_(a);
        expected_first.narrow(0, 8, 48).narrow(1, 64, 16).copy_(b * 0.5);
        EXPECT_TRUE(first.equal(expected_first));
        EXPECT_TRUE(second.equal(expected_second));
    }
}

}  // namespace unsloth::ops::test
