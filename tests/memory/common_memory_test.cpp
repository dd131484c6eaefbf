// Memory that processes have in common: who fills it, what becomes of it when one is killed, and who gets none of it.
#include "unsloth/memory/common_memory.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/child.h"
#include "unsloth/core/error.h"
#include "unsloth/core/shared_segment.h"

namespace unsloth::memory {
namespace {

using test::Child;

constexpr int64_t piece_bytes = (int64_t{8} << 20) + 1000;

Plan pieces(int count, const std::string& content = "codes") {
    Plan plan;
    for (int i = 0; i < count; ++i)
        plan.add("base weights", cat("layer ", i), piece_bytes, always, cat(content, " ", i));
    plan.place();
    return plan;
}

/// Of this test's run alone, whatever else the machine does.
std::string own_base(const std::string& name) {
    return cat(name, "-", ::getpid());
}

std::byte value_of(BufferId id) {
    return static_cast<std::byte>(id + 1);
}
void fill_piece(BufferId id, const at::Tensor& memory) {
    std::memset(memory.mutable_data_ptr(), static_cast<int>(id + 1), static_cast<std::size_t>(memory.numel()));
}
bool is_filled(const CommonMemory& memory) {
    for (BufferId id = 0; id < memory.plan().entries().size(); ++id) {
        const auto* const bytes = static_cast<const std::byte*>(memory.tensor(id).const_data_ptr());
        for (int64_t at = 0; at < piece_bytes; ++at)
            if (bytes[at] != value_of(id)) return false;
    }
    return true;
}

/// Of what this process maps of bases' memory: what is in use, and its share of it where others map it, too.
struct Mapped {
    int64_t rss = 0, pss = 0;  ///< bytes
};
Mapped mapped() {
    Mapped sum;
    std::ifstream maps("/proc/self/smaps");
    bool base = false;
    for (std::string line; std::getline(maps, line);) {
        std::istringstream words(line);
        std::string key;
        int64_t kib = 0;
        words >> key;
        if (key.find('-') != std::string::npos) base = line.find("memfd:unsloth-train base") != std::string::npos;
        if (base && key == "Rss:" && words >> kib) sum.rss += kib << 10;
        if (base && key == "Pss:" && words >> kib) sum.pss += kib << 10;
    }
    return sum;
}

/// "BASE": fills what nobody has, says what its share is, and holds it until it is told something.
TEST(CommonMemoryChild, DISABLED_Holds) {
    CommonMemory memory(pieces(4), Child::argument(), at::kCPU);
    memory.fill(fill_piece);
    const CommonMemory::Share share = memory.share();
    Child::say(cat(is_filled(memory) ? "right" : "wrong", " ", share.own, " ", share.filled, " ", share.found));
    Child::heard();
}

/// "BASE": stops in the middle of the second piece.
TEST(CommonMemoryChild, DISABLED_StopsHalfWay) {
    CommonMemory memory(pieces(20), Child::argument(), at::kCPU);
    memory.fill([](BufferId id, const at::Tensor& bytes) {
        if (id == 0) return fill_piece(id, bytes);
        std::memset(bytes.mutable_data_ptr(), 99, static_cast<std::size_t>(piece_bytes / 2));
        Child::say("half");
        Child::heard();
    });
}

/// "BASE": the same as another user, who then says so.
TEST(CommonMemoryChild, DISABLED_HoldsAsAnotherUser) {
    ASSERT_EQ(::setuid(65534), 0);
    CommonMemory memory(pieces(4), Child::argument(), at::kCPU);
    memory.fill([](BufferId, const at::Tensor& bytes) {
        std::memset(bytes.mutable_data_ptr(), 99, static_cast<std::size_t>(piece_bytes));
    });
    Child::say("held");
    Child::heard();
}

int64_t held_bytes(const std::string& base) {
    return HeldMemory(base).bytes();
}

TEST(CommonMemory, IsThereOnceForProcessesThatWereStartedApart) {
    const std::string base = own_base("apart");
    Child first("CommonMemoryChild.DISABLED_Holds", base);
    EXPECT_EQ(first.hear(), cat("right 0 ", 4 * piece_bytes, " 0"));
    EXPECT_GE(held_bytes(base), 4 * piece_bytes);
    EXPECT_GE(HeldMemory(base).bytes("codes 2"), piece_bytes);
    EXPECT_EQ(HeldMemory(base).bytes("codes 4"), 0);
    std::optional<CommonMemory> memory(std::in_place, pieces(4), base, at::kCPU);
    memory->fill([](BufferId id, const at::Tensor&) { ADD_FAILURE() << "filled again: " << id; });
    EXPECT_EQ(memory->share().found, 4 * piece_bytes);
    EXPECT_FALSE(memory->filled_here(0));
    EXPECT_TRUE(is_filled(*memory));
    const Mapped both = mapped();
    EXPECT_GE(both.rss, 4 * piece_bytes);
    EXPECT_NEAR(static_cast<double>(both.pss), static_cast<double>(both.rss) / 2, 1 << 20) << "two have it";
    EXPECT_EXIT(std::memset(memory->tensor(0).mutable_data_ptr(), 0, 1), ::testing::KilledBySignal(SIGSEGV), "")
        << "what others filled cannot be written";
    first.kill();
    EXPECT_TRUE(is_filled(*memory)) << "the first was killed";
    Child third("CommonMemoryChild.DISABLED_Holds", base);
    EXPECT_EQ(third.hear(), cat("right 0 0 ", 4 * piece_bytes)) << "from one who did not fill it";
    memory.reset();
    EXPECT_GE(held_bytes(base), 4 * piece_bytes) << "the third has it";
    third.kill();
    EXPECT_EQ(held_bytes(base), 0) << "nobody has it, and nothing stays";
}

TEST(CommonMemory, IsFilledByOthersWhereTheOneWhoBeganIsKilled) {
    const std::string base = own_base("killed");
    Child first("CommonMemoryChild.DISABLED_StopsHalfWay", base);
    ASSERT_EQ(first.hear(), "half");  // of the second; the fifteen behind it are on their way
    CommonMemory memory(pieces(20), base, at::kCPU);
    std::vector<BufferId> filled;
    std::jthread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        first.kill();
    });
    const auto waited = memory.fill([&](BufferId id, const at::Tensor& bytes) {
        fill_piece(id, bytes);
        filled.push_back(id);
    });
    EXPECT_GT(waited.count(), 0) << "nobody was waited for";
    EXPECT_EQ(filled, (std::vector<BufferId>{17, 18, 19, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}))
        << "what nobody was at first, then what was given up";
    EXPECT_TRUE(is_filled(memory));
    EXPECT_EQ(memory.share().found, piece_bytes) << "what the first had finished";
}

TEST(CommonMemory, IsNotWaitedForWhereTheOneWhoBeganIsStopped) {
    const std::string base = own_base("stopped");
    Child first("CommonMemoryChild.DISABLED_StopsHalfWay", base);
    ASSERT_EQ(first.hear(), "half");
    ASSERT_EQ(::kill(first.pid(), SIGSTOP), 0);
    CommonMemory memory(pieces(20), base, at::kCPU);
    ::testing::internal::CaptureStderr();
    memory.fill(fill_piece, std::chrono::milliseconds(200));
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(told.find("has not gone on for 0.2 s"), std::string::npos) << told;
    EXPECT_TRUE(is_filled(memory));
    EXPECT_EQ(memory.share().own, 16 * piece_bytes) << "what the first had begun";
    EXPECT_EQ(memory.share().filled, 3 * piece_bytes) << "the others can have these";
    EXPECT_EQ(memory.share().found, piece_bytes);
}

TEST(CommonMemory, IsFilledOnceByManyThatStartTogether) {
    const std::string base = own_base("together");
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 3; ++i) children.push_back(std::make_unique<Child>("CommonMemoryChild.DISABLED_Holds", base));
    int64_t all = 0;
    for (const auto& child : children) {
        std::istringstream words(child->hear());
        std::string verdict;
        int64_t own = 0, filled = 0, found = 0;
        words >> verdict >> own >> filled >> found;
        EXPECT_EQ(verdict, "right");
        EXPECT_EQ(own, 0);
        EXPECT_EQ(filled + found, 4 * piece_bytes);
        all += filled;
    }
    EXPECT_EQ(all, 4 * piece_bytes);
}

TEST(CommonMemory, IsNotThatOfAnotherBaseOrContent) {
    const std::string base = own_base("one");
    CommonMemory memory(pieces(4), base, at::kCPU);
    memory.fill(fill_piece);
    CommonMemory other(pieces(4), own_base("another"), at::kCPU), form(pieces(4, "halves"), base, at::kCPU);
    for (CommonMemory* one : {&other, &form}) {
        one->fill([](BufferId, const at::Tensor&) {});
        EXPECT_EQ(one->share().filled, 4 * piece_bytes);
    }
    Plan longer;
    longer.add("base weights", "layer 0", piece_bytes + 1, always, "codes 0");
    longer.place();
    CommonMemory lied(longer, base, at::kCPU);
    lied.fill([](BufferId, const at::Tensor&) {});
    EXPECT_EQ(lied.share().filled, piece_bytes + 1) << "a segment of another size is not that";
}

TEST(CommonMemory, OfAnotherUserIsNotTrusted) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
    const std::string base = own_base("stranger");
    Child stranger("CommonMemoryChild.DISABLED_HoldsAsAnotherUser", base);
    ASSERT_EQ(stranger.hear(), "held");
    EXPECT_EQ(held_bytes(base), 0);
    CommonMemory memory(pieces(4), base, at::kCPU);
    memory.fill(fill_piece);
    EXPECT_EQ(memory.share().filled, 4 * piece_bytes);
    EXPECT_TRUE(is_filled(memory));
}

TEST(CommonMemory, FillsNothingTwiceWhenFillingFails) {
    const std::string base = own_base("fails");
    std::optional<CommonMemory> memory(std::in_place, pieces(1), base, at::kCPU);
    EXPECT_THROW(
        memory->fill([](BufferId, const at::Tensor&) { throw Error("checkpoint.damaged-file", "a bad file"); }), Error);
    CommonMemory next(pieces(1), base, at::kCPU);
    memory.reset();  // with its lock
    next.fill(fill_piece);
    EXPECT_EQ(next.share().filled, piece_bytes);
    EXPECT_TRUE(is_filled(next));
}

TEST(SharedSegment, TellsALockThatAnotherHoldsFromNone) {
    const std::string name = own_base("locked");
    const auto made = SharedSegment::make(100, name);
    auto held = SharedSegment::held([&](const std::string& one) { return one == name; });
    const auto found = SharedSegment::open(std::move(held.at(name)), 100);
    ASSERT_TRUE(made->try_lock());
    EXPECT_FALSE(found->try_lock());
    made->close();
    EXPECT_FALSE(found->try_lock()) << "its memory is still there, and the lock with it";
    EXPECT_THROW(made->try_lock(), Error) << "which nobody would ever free";
}

TEST(SharedSegment, IsNotCutShortUnderThoseWhoMapIt) {
    const std::string name = own_base("sealed");
    const auto made = SharedSegment::make(100, name);
    auto held = SharedSegment::held([&](const std::string& one) { return one == name; });
    EXPECT_NE(::ftruncate(held.at(name).get(), 0), 0);
    EXPECT_EQ(errno, EPERM);
}

TEST(SharedSegment, IsReadOnlyWhereItIsProtected) {
    const auto made = SharedSegment::make(100, own_base("protected"));
    made->data()[0] = std::byte{1};
    ASSERT_TRUE(made->protect());
    const pid_t child = ::fork();
    if (child == 0) {
        (void)::signal(SIGSEGV, SIG_DFL);
        *const_cast<volatile std::byte*>(made->data()) = std::byte{2};
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
    EXPECT_EQ(made->data()[0], std::byte{1});
    ASSERT_TRUE(made->protect(/*read_only=*/false));
    made->data()[0] = std::byte{3};
}

TEST(MachineLock, IsHeldByOneAtATime) {
    const std::string name = own_base("lock");
    std::optional<MachineLock> first(std::in_place, name);
    EXPECT_EQ(first->why(), "");
    EXPECT_NE(MachineLock(name, 0.05).why(), "");
    std::jthread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        first.reset();
    });
    EXPECT_EQ(MachineLock(name).why(), "");
}

}  // namespace
}  // namespace unsloth::memory
