// Blocks converted into places of larger matrices; on a GPU too where there is one (tests/gpu/fill_table_gpu_test.cpp
// runs the same cases).
#include "ops/fill_table_cases.h"

namespace unsloth::ops::test {
namespace {

TEST(MultiTensorCopy, WritesEachRunAndNothingElse) {
    check_fill_table(at::kCPU);
}

}  // namespace
}  // namespace unsloth::ops::test
