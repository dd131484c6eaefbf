#include "unsloth/memory/plan.h"

#include <gtest/gtest.h>

#include <random>

#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::memory {
namespace {

bool share_a_phase(const Entry& a, const Entry& b) {
    return (a.phases & b.phases) != 0;
}
bool overlap(const Entry& a, const Entry& b) {
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

/// Buffers as a run has them: many of few sizes, some huge, some empty, of every combination of phases.
Plan random_plan(uint32_t seed, Detail detail = Detail::names) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
    Plan plan(detail);
    const int64_t count = 1 + below(60);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t kind = below(10);
        const int64_t bytes = kind == 0 ? 0 : kind == 1 ? 512 * below(4000) : kind < 5 ? 4096 : 1 + below(100000);
        plan.add(cat("group ", below(4)), cat("buffer ", i), bytes, static_cast<uint8_t>(1 + below(15)));
    }
    plan.place();
    return plan;
}

TEST(Plan, BuffersThatLiveTogetherNeverShareBytes) {
    for (uint32_t seed = 0; seed < 500; ++seed) {
        const Plan plan = random_plan(seed);
        for (const Entry& a : plan.entries()) {
            ASSERT_EQ(a.offset % 512, 0) << a.name;
            ASSERT_GE(a.offset, 0) << a.name;
            ASSERT_LE(a.offset + a.bytes, plan.total_bytes()) << a.name;
            for (const Entry& b : plan.entries()) {
                if (&a == &b || !share_a_phase(a, b)) continue;
                ASSERT_FALSE(overlap(a, b)) << "seed " << seed << ": " << a.name << " and " << b.name;
            }
        }
    }
}

TEST(Plan, TakesAsMuchBySizeAlone) {
    for (uint32_t seed = 0; seed < 500; ++seed) {
        const Plan sizes = random_plan(seed, Detail::sizes);
        ASSERT_EQ(sizes.total_bytes(), random_plan(seed).total_bytes()) << seed;
        ASSERT_TRUE(sizes.entries().empty());
    }
    Plan each, together(Detail::sizes);
    for (int i = 0; i < 5; ++i) each.add("layers", cat("kept ", i), 700, forward | backward);
    each.add("head", "logits", 2000, head);
    each.place();
    together.add_sizes(700, forward | backward, 5);
    together.add("head", [] { return std::string("logits"); }, 2000, head);
    together.place();
    EXPECT_EQ(together.total_bytes(), each.total_bytes());
}

TEST(Plan, TakesAtLeastItsBusiestPhaseAndAtMostTheSum) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        const Plan plan = random_plan(seed);
        int64_t sum = 0;
        for (const Entry& entry : plan.entries()) sum += (entry.bytes + 511) / 512 * 512;
        for (const uint8_t phase : {forward, head, backward, update}) {
            int64_t live = 0;
            for (const Entry& entry : plan.entries())
                if ((entry.phases & phase) != 0) live += entry.bytes;
            ASSERT_GE(plan.total_bytes(), live) << seed;
        }
        ASSERT_LE(plan.total_bytes(), sum) << seed;
    }
}

TEST(Plan, BuffersWithoutACommonPhaseShareTheirBytes) {
    Plan plan;
    plan.add("weights", "w", 1000);
    const BufferId a = plan.add("layers", "activations", 100000, forward | backward);
    const BufferId b = plan.add("head", "logits", 90000, head);
    plan.place();
    EXPECT_EQ(plan.entry(a).offset, plan.entry(b).offset);
    EXPECT_EQ(plan.entry(a).offset, 1024);  // above the buffer of all phases
    EXPECT_EQ(plan.total_bytes(), 1024 + 100352);
}

TEST(Plan, AGapIsFilledWhereItIsLargeEnough) {
    Plan plan;
    const BufferId large = plan.add("g", "large", 8192, forward);
    const BufferId other = plan.add("g", "other", 4096, head);
    const BufferId both = plan.add("g", "both", 2048, head | backward);
    const BufferId small = plan.add("g", "small", 1024, backward);
    plan.place();
    EXPECT_EQ(plan.entry(large).offset, 0);
    EXPECT_EQ(plan.entry(other).offset, 0);
    EXPECT_EQ(plan.entry(both).offset, 4096);
    EXPECT_EQ(plan.entry(small).offset, 0);  // below `both`, beside nothing that lives with it
    EXPECT_EQ(plan.total_bytes(), 8192);
}

TEST(Plan, RefusesNamesThatAreTakenOrUnknown) {
    Plan plan;
    plan.add("g", "x", 8);
    EXPECT_THROW(plan.add("other", "x", 8), CheckError);
    EXPECT_THROW(plan.add("g", "negative", -1), CheckError);
    EXPECT_THROW(plan.find("y"), CheckError);
    EXPECT_EQ(plan.entry(plan.find("x")).name, "x");
}

TEST(Plan, TheTableListsGroupsByFallingSizeAndWhatSharingSaves) {
    Plan plan;
    plan.add("small things", "a", 1 << 20);
    plan.add("large things", "b", 3 << 20, forward);
    plan.add("large things", "c", 3 << 20, head);
    plan.place();
    const std::string table = plan.table();
    const std::size_t large = table.find("large things"), small = table.find("small things"),
                      total = table.find("total");
    ASSERT_NE(large, std::string::npos);
    ASSERT_NE(small, std::string::npos);
    ASSERT_NE(total, std::string::npos);
    EXPECT_LT(large, small);
    EXPECT_LT(small, total);
    EXPECT_NE(table.find("2 buffers      6.0 MiB"), std::string::npos) << table;
    EXPECT_NE(table.find("3 buffers      4.0 MiB (3.0 MiB saved by sharing)"), std::string::npos) << table;
}

TEST(Arena, ViewsLieWhereThePlanSays) {
    Plan plan;
    const BufferId a = plan.add("g", "a", 4 * 6, forward);
    const BufferId b = plan.add("g", "b", 2 * 100, head);
    const BufferId c = plan.add("g", "c", 4 * 6);
    plan.place();
    const Arena arena(plan, at::kCPU);
    const at::Tensor x = arena.tensor(a, {2, 3}, at::kFloat), y = arena.tensor(b, {100}, at::kBFloat16);
    const at::Tensor z = arena.tensor(c, {6}, at::kFloat);
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(x.scalar_type(), at::kFloat);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_EQ(x.data_ptr(), y.data_ptr());  // no common phase
    z.fill_(7);
    x.fill_(1);
    y.fill_(2);
    EXPECT_TRUE(at::equal(z, at::full({6}, 7.0F)));
    const auto base = static_cast<std::byte*>(z.data_ptr()) - arena.plan().entry(c).offset;
    EXPECT_EQ(static_cast<std::byte*>(x.data_ptr()) - base, arena.plan().entry(a).offset);
}

TEST(Arena, RefusesAViewLargerThanItsBuffer) {
    Plan plan;
    const BufferId a = plan.add("g", "a", 24);
    plan.add("g", "b", 4096);
    plan.place();
    const Arena arena(plan, at::kCPU);
    EXPECT_EQ(arena.tensor(a, {3}, at::kFloat).numel(), 3);  // part of it
    EXPECT_THROW(arena.tensor(a, {7}, at::kFloat), CheckError);
    EXPECT_THROW(arena.tensor(a, {6}, at::kDouble), CheckError);
}

TEST(Arena, AnEmptyPlanIsNoError) {
    Plan plan;
    const BufferId nothing = plan.add("g", "nothing", 0);
    plan.place();
    const Arena arena(plan, at::kCPU);
    EXPECT_EQ(arena.tensor(nothing, {0, 4}, at::kFloat).numel(), 0);
}

TEST(Arena, SaysWhatWasAskedForWhenTheDeviceHasNotEnough) {
    Plan plan;
    plan.add("layer inputs", "x", int64_t{1} << 55);
    plan.place();
    try {
        const Arena arena(plan, at::kCPU);
        FAIL() << "32 PiB were allocated";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        EXPECT_NE(std::string(error.what()).find("layer inputs"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("33554432.00 GiB"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("max_seq_length"), std::string::npos) << error.what();
    }
}

TEST(DeviceMemory, TheMachinesMemoryIsPlausible) {
    const DeviceMemory memory = device_memory(at::kCPU);
    EXPECT_GT(memory.free, 1 << 20);
    EXPECT_LE(memory.free, memory.total);
}

}  // namespace
}  // namespace unsloth::memory
