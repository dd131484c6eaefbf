// One operator on one set of arguments, runnable on any device: the same list is compared with an fp64 oracle on the
// CPU, and on a GPU with the oracle and with the CPU.
#pragma once

#include <ATen/Parallel.h>

#include <cstring>
#include <functional>

#include "ops/tensor_testing.h"
#include "unsloth/ops/context.h"

namespace unsloth::testing {

enum class Role {
    input,   ///< must come back unchanged, bit for bit
    output,  ///< written; poisoned before
    both,    ///< read and written
};

struct Arg {
    std::string name;
    at::Tensor value;  ///< on the CPU
    Role role = Role::input;
};

using Tensors = std::vector<at::Tensor>;

struct OpCase {
    std::string name;
    std::vector<Arg> args;
    /// Calls the operator with the arguments on the context's device.
    std::function<void(ops::Context&, const Tensors&)> run;
    /// The oracle: what outputs and `both` arguments must hold afterwards, in their order. It gets the arguments as
    /// they were, floating ones in fp64.
    std::function<Tensors(const Tensors&)> expected;
    std::function<int64_t(at::Device)> workspace = [](at::Device) { return 0; };
    /// Replaces tolerance_of(dtype) when set.
    std::optional<Tolerance> tolerance;
    spec::StepScalars scalars{};
    spec::StepOutcome outcome_before{0, 0, 0, 0, spec::all_finite};
    uint32_t expected_bad_site = spec::all_finite;
    double expected_loss = 0;
};

struct CaseResult {
    Tensors args;  ///< on the CPU, with their storage
    spec::StepOutcome outcome{};
};

/// A plain struct as bytes on a device.
template <class T>
at::Tensor bytes_on(const T& value, at::Device device) {
    const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(T))}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &value, sizeof(T));
    return bytes.to(device, at::kByte, false, /*copy=*/true);
}

inline CaseResult run_case(const OpCase& op_case, at::Device device) {
    ops::Context ctx(device);
    const at::Tensor scalars = bytes_on(op_case.scalars, device);
    const at::Tensor outcome = bytes_on(op_case.outcome_before, device);
    ctx.scalars = static_cast<const spec::StepScalars*>(scalars.const_data_ptr());
    ctx.outcome = static_cast<spec::StepOutcome*>(outcome.mutable_data_ptr());
    const int64_t bytes = op_case.workspace(ctx.device());
    if (bytes > 0) ctx.workspace = at::full({bytes}, 0xFF, at::TensorOptions(at::kByte).device(device));  // NaN as fp32
    Tensors args;
    for (const Arg& arg : op_case.args) args.push_back(copy_with_storage(arg.value, device));
    op_case.run(ctx, args);
    CaseResult result;
    for (const at::Tensor& arg : args) result.args.push_back(copy_with_storage(arg, at::kCPU));
    const at::Tensor outcome_after = outcome.cpu();
    std::memcpy(&result.outcome, outcome_after.const_data_ptr(), sizeof(spec::StepOutcome));
    return result;
}

/// The result is what the oracle says, inputs are unchanged, and nothing outside the slices was written.
inline void expect_matches_oracle(const OpCase& op_case, const CaseResult& result) {
    Tensors before;
    for (const Arg& arg : op_case.args) {
        before.push_back(arg.value.is_floating_point() ? arg.value.to(at::kDouble) : arg.value.clone());
    }
    const int threads = at::get_num_threads();
    at::set_num_threads(1);  // oracles work on many small tensors: waking threads would take most of the time
    const Tensors expected = op_case.expected(before);
    at::set_num_threads(threads);
    size_t next = 0;
    for (size_t i = 0; i < op_case.args.size(); ++i) {
        const Arg& arg = op_case.args[i];
        if (arg.role == Role::input) {
            EXPECT_TRUE(same_bits(result.args[i], arg.value)) << arg.name << " is an input and was changed";
            continue;
        }
        ASSERT_LT(next, expected.size());
        expect_close(result.args[i], expected[next++],
                     op_case.tolerance.value_or(tolerance_of(arg.value.scalar_type())), arg.name);
        expect_untouched_outside(result.args[i], arg.value, arg.name);
    }
    EXPECT_EQ(next, expected.size()) << "the oracle knows other outputs than the case";
    EXPECT_EQ(result.outcome.first_bad_site, op_case.expected_bad_site);
    EXPECT_NEAR(result.outcome.loss, op_case.expected_loss, 1e-6 * std::abs(op_case.expected_loss));
}

inline CaseResult run_on_threads(const OpCase& op_case, int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    CaseResult result = run_case(op_case, at::kCPU);
    at::set_num_threads(before);
    return result;
}

/// LibTorch's products add up in an order that depends on the number of threads.
enum class Sums { own, of_libtorch };

/// Runs every case on the CPU against its oracle, with the same bits on one thread and on three.
inline void check_on_cpu(const std::vector<OpCase>& cases, Sums sums = Sums::own) {
    ASSERT_FALSE(cases.empty());
    for (const OpCase& op_case : cases) {
        SCOPED_TRACE(op_case.name);
        const CaseResult one = run_on_threads(op_case, 1), three = run_on_threads(op_case, 3);
        expect_matches_oracle(op_case, three);
        if (sums == Sums::of_libtorch) continue;
        for (size_t i = 0; i < one.args.size(); ++i)
            EXPECT_TRUE(same_bits(one.args[i], three.args[i])) << op_case.args[i].name << " on one thread and on three";
    }
}

/// The scalars of a step as tests use them.
inline spec::StepScalars test_scalars() {
    spec::StepScalars scalars{};
    scalars.step = 1;
    scalars.epoch = 3;
    scalars.seed_lo = 0x12345678u;
    scalars.seed_hi = 0x9ABCDEF0u;
    scalars.inv_loss_divisor = 1.f / 37.f;
    scalars.loss_scale = 1024.f;
    return scalars;
}

template <class... Parts>
std::string case_name(const Parts&... parts) {
    std::ostringstream out;
    ((out << parts << ' '), ...);
    return out.str();
}

}  // namespace unsloth::testing
