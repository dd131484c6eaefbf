// Operator cases on a GPU: against the fp64 oracle, against the CPU operator, and against themselves.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <random>

#include "ops/op_cases.h"

namespace unsloth::testing {

/// Skips without a GPU.
class GpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
    }
};

using CaseList = std::vector<OpCase> (*)(uint64_t seed);

inline Tolerance twice(Tolerance t) {
    return {2 * t.relative, 2 * t.absolute, 2 * t.floor};
}

/// Every case on fresh random data (the seed is in the trace): equal to the oracle and to the CPU within rounding, and,
/// where it `repeats`, the same bits when it runs again.
inline void check_on_gpu(CaseList list, bool repeats = true) {
    const uint64_t seed = std::random_device{}();
    const std::vector<OpCase> cases = list(seed);
    ASSERT_FALSE(cases.empty());
    for (const OpCase& op_case : cases) {
        SCOPED_TRACE(op_case.name + " seed " + std::to_string(seed));
        const CaseResult gpu = run_case(op_case, at::kCUDA);
        expect_matches_oracle(op_case, gpu);
        const CaseResult cpu = run_case(op_case, at::kCPU);
        const CaseResult again = run_case(op_case, at::kCUDA);
        for (size_t i = 0; i < op_case.args.size(); ++i) {
            const Arg& arg = op_case.args[i];
            EXPECT_TRUE(!repeats || same_bits(gpu.args[i], again.args[i]))
                << arg.name << ": a second run gave other bits";
            if (arg.role == Role::input) continue;
            expect_close(gpu.args[i], cpu.args[i].to(at::kDouble),
                         twice(op_case.tolerance.value_or(tolerance_of(arg.value.scalar_type()))),
                         arg.name + " against the CPU");
        }
    }
}

/// Milliseconds of one call: the best of a few batches, after a warm-up.
inline double milliseconds_of(const std::function<void()>& call) {
    constexpr int batches = 5, calls = 20;
    for (int i = 0; i < 3; ++i) call();
    double best = std::numeric_limits<double>::infinity();
    for (int batch = 0; batch < batches; ++batch) {
        at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
        begin.record();
        for (int i = 0; i < calls; ++i) call();
        end.record();
        end.synchronize();
        best = std::min(best, static_cast<double>(begin.elapsed_time(end)) / calls);
    }
    return best;
}

}  // namespace unsloth::testing
