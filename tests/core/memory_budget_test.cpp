#include "unsloth/core/memory_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace unsloth {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

class Budget : public testing::Test {
  protected:
    void SetUp() override {
        if (!MemoryBudget::counts()) GTEST_SKIP() << "this build has a sanitizer's operator new";
    }
};

TEST_F(Budget, EndsWhatTakesMoreWhereItIsEnforced) {
    const MemoryBudget budget(4 * mib);
    std::vector<char> held(3 * mib);
    EXPECT_NO_THROW(std::string(2 * mib, 'x')) << "counted alone";
    const MemoryBound bound;
    EXPECT_THROW(std::string(2 * mib, 'x'), BudgetSpent);
    struct alignas(64) Line {
        char bytes[64];
    };
    EXPECT_THROW(std::vector<Line>(2 * mib / 64), BudgetSpent);
    EXPECT_EQ(new (std::nothrow) char[2 * mib], nullptr);
    {
        const MemoryBound none = MemoryBound::none();
        EXPECT_NO_THROW(std::string(2 * mib, 'x'));
    }
    std::vector<char>().swap(held);
    EXPECT_NO_THROW(std::string(3 * mib, 'x')) << "what was given back counts no more";
    for (int i = 0; i < 1000; ++i) std::make_unique<char[]>(mib);
    const MemoryBound lower(mib);
    EXPECT_THROW(std::string(2 * mib, 'x'), BudgetSpent);
}

TEST_F(Budget, ThrowsNothingWhileAnExceptionIsOnItsWay) {
    struct TakesMemoryAtItsEnd {
        ~TakesMemoryAtItsEnd() { EXPECT_EQ(std::string(2 * mib, 'x').size(), 2u * mib); }
    };
    const MemoryBudget budget(mib);
    const MemoryBound bound;
    const auto fails = [] {
        const TakesMemoryAtItsEnd end;
        std::string(2 * mib, 'x');
    };
    EXPECT_THROW(fails(), BudgetSpent);
}

TEST_F(Budget, IsItsThreadsAloneAndTheOutermost) {
    const MemoryBudget budget(mib);
    {
        const MemoryBudget within(8 * mib);
        const MemoryBound bound;
        EXPECT_THROW(std::string(2 * mib, 'x'), BudgetSpent);
    }
    const MemoryBound bound;
    EXPECT_THROW(std::string(2 * mib, 'x'), BudgetSpent) << "the inner one's end is not the outer one's";
    std::thread([] {
        const MemoryBound without_a_budget;
        EXPECT_NO_THROW(std::string(2 * mib, 'x'));
    }).join();
}

}  // namespace
}  // namespace unsloth
