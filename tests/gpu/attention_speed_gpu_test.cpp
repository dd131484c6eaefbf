// How fast attention is on the GPU at hand: run by hand.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "gpu/attention_gpu_testing.h"

namespace unsloth::ops::attention_testing {
namespace {

double milliseconds(const Context& ctx, int repeats, const std::function<void()>& work) {
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    cudaEvent_t start, stop;
    cudaEventCreate(&start), cudaEventCreate(&stop);
    work(), work();
    cudaEventRecord(start, stream);
    for (int i = 0; i < repeats; ++i) work();
    cudaEventRecord(stop, stream);
    cudaEventSynchronize(stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    return ms / repeats;
}

/// Run by hand, as the next one: one row of so many tokens on one GPU, and each rank's chunks of it on two and four.
TEST_F(AttentionGpu, DISABLED_SpeedOfChunks) {
    plans_keys = true;
    for (const int32_t length : {16384, 65536, 131072})
        for (const int32_t ranks : {1, 2, 4})
            for (int32_t rank = 0; rank < ranks; ++rank) {
                c10::cuda::CUDACachingAllocator::emptyCache();
                const int32_t chunk = length / (2 * ranks), mirror = 2 * ranks - 1 - rank;
                const std::vector<int32_t> queries = ranks == 1 ? std::vector{length} : std::vector{chunk, chunk},
                                           keys = ranks == 1 ? queries
                                                             : std::vector{chunk * (rank + 1), chunk * (mirror + 1)};
                Problem p(shape_of(32, 8, 128), queries, at::kBFloat16, keys);
                plan(p);
                const double flops = 4.0 * 32 * 128 * 0.5 * length * length / ranks;
                const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
                const double forward = milliseconds(
                    *ctx, 3, [&] { attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), choice); });
                const double backward = milliseconds(
                    *ctx, 3, [&] { attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), choice); });
                std::cout << length << " tokens, rank " << rank << " of " << ranks << ": "
                          << name_of_form(choice.kernels) << ", workspace " << ctx->workspace.numel() / 1048576
                          << " MiB; forward " << forward << " ms, " << flops / forward * 1e-9 << " TF/s; backward "
                          << backward << " ms, " << 2.5 * flops / backward * 1e-9 << " TF/s\n";
            }
}

/// Run by hand: --gtest_also_run_disabled_tests --gtest_filter='AttentionGpu.DISABLED_Speed'; UNSLOTH_TEST_HEAD_DIM
/// (128), UNSLOTH_TEST_DETERMINISTIC=1.
TEST_F(AttentionGpu, DISABLED_Speed) {
    struct Mix {
        const char* name;
        std::vector<int32_t> lengths;
    };
    std::vector<int32_t> mixed, tiny(512, 32);
    for (int i = 0, left = 16384; left > 0; ++i) {
        mixed.push_back(std::min(left, 100 + (i * 977) % 1900));
        left -= mixed.back();
    }
    const std::vector<Mix> mixes = {{"8 x 2048", std::vector<int32_t>(8, 2048)},
                                    {"9 x 2048", std::vector<int32_t>(9, 2048)},
                                    {"2 x 8192", {8192, 8192}},
                                    {"1 x 16384", {16384}},
                                    {"1 x 16383", {16383}},
                                    {"1 x 32768", {32768}},
                                    {"2 of 6000 to 8000", {8000, 6000}},
                                    {"4 of 3000 to 4000", {4000, 3500, 3300, 3000}},
                                    {"2 x 2048", {2048, 2048}},
                                    {"8 of 2047 or 2048", {2047, 2048, 2047, 2048, 2047, 2048, 2047, 2048}},
                                    {"mixed 100 to 2000", mixed},
                                    {"512 x 32", tiny},
                                    {"8000 and 100 of 80", [] {
                                         std::vector<int32_t> x(101, 80);
                                         x[0] = 8000;
                                         return x;
                                     }()}};
    const char* const asked = std::getenv("UNSLOTH_TEST_HEAD_DIM");
    ctx->deterministic = std::getenv("UNSLOTH_TEST_DETERMINISTIC") != nullptr;
    for (const Mix& mix : mixes) {
        Problem p(shape_of(32, 8, asked != nullptr ? std::atoi(asked) : 128), mix.lengths, at::kBFloat16);
        const auto started = std::chrono::steady_clock::now();
        plan(p);
        const double planning =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
        double pairs = 0;
        for (const int32_t n : mix.lengths) pairs += 0.5 * n * n;
        const double flops = 4.0 * static_cast<double>(p.shape.heads * p.shape.head_dim) * pairs;
        const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
        std::cout << mix.name << ": " << p.segments.count() << " segments, " << p.t << " tokens, workspace "
                  << ctx->workspace.numel() / 1048576 << " MiB, planned in " << planning << " ms\n";
        for (const CudaChoice& c : {choice, CudaChoice{}}) {
            const double forward =
                milliseconds(*ctx, 20, [&] { attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), c); });
            const double backward =
                milliseconds(*ctx, 20, [&] { attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), c); });
            std::cout << "  " << name_of_form(c.kernels) << ": forward " << forward << " ms, " << flops / forward * 1e-9
                      << " TF/s; backward " << backward << " ms, " << 2.5 * flops / backward * 1e-9 << " TF/s\n";
            if (choice.kernels == CudaForm::portable) break;
        }
    }
}

}  // namespace
}  // namespace unsloth::ops::attention_testing
