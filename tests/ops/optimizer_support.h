// A context on the CPU, and random values.
#pragma once

#include "unsloth/ops/optimizer.h"

#include <gtest/gtest.h>

#include "kernels/dynamic_codes.h"
#include "ops/optimizer_cases.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/finite_sites.h"

namespace unsloth {

using ops::Context;
using namespace optimizer_cases;

class OptimizerTest : public ::testing::Test {
  protected:
    Context ctx{at::kCPU};
    at::Generator generator = at::detail::createCPUGenerator(5);
};

}  // namespace unsloth
