#include <ATen/Context.h>

#include "ops/fill_table_cases.h"

namespace unsloth::ops::test {
namespace {

TEST(FillTableGpu, WritesEachRunAndNothingElse) {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
    check_fill_table(at::kCUDA);
}

}  // namespace
}  // namespace unsloth::ops::test
