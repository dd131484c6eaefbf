// Groups on the CPU: ranks as threads that meet at a real store.
#include "unsloth/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "comm/ranks.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"

namespace unsloth::comm {
namespace {

TEST(Group, AloneThereIsNone) {
    EXPECT_EQ(make_group({}, at::kCPU, std::chrono::seconds(1)), nullptr);
}

TEST(Group, SumsAreTheSameBitsOnEveryRank) {
    constexpr int size = 3, rounds = 5;
    std::vector<at::Tensor> results(size);
    on_ranks(size, [&](Group& group) {
        for (int round = 0; round < rounds; ++round) {
            at::Tensor x = at::arange(1000, at::kFloat)
                               .mul_(0.1F * static_cast<float>(group.rank() + 1))
                               .add_(static_cast<float>(round));
            group.all_reduce(x, "a test's sum");
            results[static_cast<std::size_t>(group.rank())] = x;
        }
    });
    const at::Tensor expected = at::arange(1000, at::kDouble).mul_(0.6).add_(3 * (rounds - 1));
    EXPECT_TRUE(at::allclose(results[0].to(at::kDouble), expected, 1e-5));
    for (int rank = 1; rank < size; ++rank) EXPECT_TRUE(at::equal(results[0], results[static_cast<std::size_t>(rank)]));
}

TEST(Group, SumsBesideOtherWorkAreThereAfterJoin) {
    on_ranks(2, [&](Group& group) {
        at::Tensor x = at::ones({100}), y = at::full({3}, 2.F);
        int ready = 0;
        group.all_reduce_async(x.narrow(0, 50, 50), [&] { ++ready; }, "a test's second half");
        group.all_reduce_async(x.narrow(0, 0, 50), [&] { ++ready; }, "a test's first half");
        group.all_reduce(y, "a test's sum");
        group.join();
        EXPECT_EQ(ready, 2);
        EXPECT_TRUE(at::equal(x, at::full({100}, 2.F)));
        EXPECT_TRUE(at::equal(y, at::full({3}, 4.F)));
    });
}

TEST(Group, RanksOfAMachineSendEachOtherValues) {
    on_ranks(3, [&](Group& group) {
        EXPECT_EQ(group.ranks_here(), (std::vector<int>{0, 1, 2}));
        EXPECT_EQ(group.place_here(), group.rank());
        for (int root = 0; root < 3; ++root) {
            at::Tensor values = at::full({5, 7}, group.rank() * 10 + root, at::kByte);
            group.broadcast_here(values, root, "a test's values");
            EXPECT_TRUE(at::equal(values, at::full({5, 7}, root * 10 + root, at::kByte)));
        }
        at::Tensor none = at::empty({0});
        group.broadcast_here(none, 1, "no values");
    });
}

TEST(Group, GathersTextsByRank) {
    on_ranks(3, [](Group& group) {
        const std::string own = group.rank() == 1 ? "" : std::string(group.rank() == 0 ? 1 : 5000, 'x');
        const std::vector<std::string> all = group.gather(own, "a test's texts");
        ASSERT_EQ(all.size(), 3U);
        EXPECT_EQ(all[0], "x");
        EXPECT_EQ(all[1], "");
        EXPECT_EQ(all[2], std::string(5000, 'x'));
        group.barrier("a test's end");
    });
}

TEST(Group, ARankThatDoesNotComeIsNamed) {
    std::vector<std::string> messages(3);
    on_ranks(
        3,
        [&](Group& group) {
            at::Tensor x = at::ones({4});
            group.all_reduce(x, "gradients of step 1");
            if (group.rank() == 2) return;
            try {
                group.all_reduce(x, "gradients of step 2");
            } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::runtime);
                messages[static_cast<std::size_t>(group.rank())] = error.what();
            }
        },
        std::chrono::seconds(2));
    for (int rank : {0, 1})
        EXPECT_NE(messages[static_cast<std::size_t>(rank)].find(
                      cat("rank 2 (", host_name(), ") did not come to gradients of step 2 (all-reduce, all of ranks")),
                  std::string::npos)
            << messages[static_cast<std::size_t>(rank)];
}

TEST(Group, AStoreThatNobodyServesIsSaid) {
    try {
        make_group(rank_of(1, 2, free_port()), at::kCPU, std::chrono::seconds(1));
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "rank.no-rendezvous");
        EXPECT_NE(std::string(error.what()).find("did not reach rank 0's store at 127.0.0.1"), std::string::npos)
            << error.what();
    }
}

TEST(Group, ABusyRankIsWaitedForLongerThanTheTimeout) {
    on_ranks(
        2,
        [](Group& group) {
            at::Tensor x = at::ones({4});
            if (group.rank() == 0) {
                const LongOperation saving(&group, "saving a checkpoint");
                std::this_thread::sleep_for(std::chrono::milliseconds(3500));
            }
            group.all_reduce(x, "gradients of step 1");
            EXPECT_EQ(x[0].item<float>(), 2.F);
        },
        std::chrono::seconds(1));
}

TEST(Group, BetweenMachinesEveryMessageIsSealed) {
    // All on this one, but no launcher says so.
    const int port = free_port();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([rank, port] {
            LaunchEnvironment e = rank_of(rank, 2, port);
            e.one_machine = false;
            e.secret = "a secret of sixteen or more";
            const auto group = make_group(e, at::kCPU, std::chrono::seconds(5));
            at::Tensor x = at::full({300000}, 1.F + static_cast<float>(rank));
            group->all_reduce(x, "a test's sum");
            EXPECT_TRUE(at::equal(x, at::full({300000}, 3.F)));
            const std::string large(1 << 20, 'x');
            EXPECT_EQ(group->gather(large, "a test's texts"), (std::vector<std::string>{large, large}));
        });
    for (std::thread& thread : threads) thread.join();
}

TEST(Group, ARankWithAnotherSecretIsTurnedAway) {
    const int port = free_port();
    std::string message;
    std::thread zero([port] {
        LaunchEnvironment e = rank_of(0, 2, port);
        e.secret = "a secret of sixteen or more";
        EXPECT_THROW(make_group(e, at::kCPU, std::chrono::seconds(1)), Error);
    });
    LaunchEnvironment e = rank_of(1, 2, port);
    e.secret = "another one of the same length";
    try {
        make_group(e, at::kCPU, std::chrono::seconds(1));
    } catch (const Error& error) {
        message = error.what();
    }
    zero.join();
    EXPECT_NE(message.find("does not know this run's secret"), std::string::npos) << message;
}

TEST(Group, UnderTorchrunTheAgentsStoreSaysWhereRanksMeet) {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    // Somebody was there before.
    static_cast<c10d::Store&>(*agent).set("unsloth-train/store/0", "127.0.0.1 1 0000");
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([rank, &agent] {
            LaunchEnvironment e = rank_of(rank, 2, agent->getPort());
            e.agent_hosts_store = true;
            e.one_machine = false;
            e.secret = "a secret of sixteen or more";
            if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
            const auto group = make_group(e, at::kCPU, std::chrono::seconds(5));
            EXPECT_EQ(group->gather(std::to_string(rank), "a test's texts"), (std::vector<std::string>{"0", "1"}));
        });
    for (std::thread& thread : threads) thread.join();
}

TEST(Group, TextsOfOtherRanksHoldNoControlCharacters) {
    on_ranks(2, [](Group& group) {
        const auto all = group.gather(group.rank() == 0 ? "a" : "b\x1b[2J\nc", "a test's texts");
        if (group.rank() == 0) {
            EXPECT_EQ(all[1], "b?[2J\nc");
        }
    });
}

TEST(Group, SumsOfDifferentSizesAreRefused) {
    on_ranks(2, [](Group& group) {
        at::Tensor x = at::ones({group.rank() == 0 ? 4 : 0});
        EXPECT_THROW(group.all_reduce(x, "a test's sum"), Error) << "rank " << group.rank();
    });
}

}  // namespace
}  // namespace unsloth::comm
