// Communicators of CPU ranks and the mesh that they form; ranks are threads that meet at a real store.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>
#include "comm/cpu_communicator.h"
#include "comm/ranks.h"
#include "unsloth/comm/mesh.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"

namespace unsloth::comm {
namespace {

/// Larger than the pieces that go through at a time, and no multiple of them.
constexpr int64_t large = 700001;

at::Tensor values_of(int rank, int64_t count, at::ScalarType type) {
    return at::arange(count, at::kFloat).remainder_(977).mul_(0.37F).add_(static_cast<float>(rank) * 1.3F).to(type);
}

/// Added in fp32 in the order of the ranks, rounded once.
at::Tensor sum_of(const std::vector<int>& ranks, int64_t count, at::ScalarType type) {
    at::Tensor sum = values_of(ranks.front(), count, type).to(at::kFloat);
    for (std::size_t i = 1; i < ranks.size(); ++i) sum += values_of(ranks[i], count, type).to(at::kFloat);
    return sum.to(type);
}

/// Every operation among `members`, of whom the communicator is.
void try_all(Communicator& c, const std::vector<int>& members, int own) {
    ASSERT_EQ(c.ranks(), members);
    const int size = c.size(), next = (c.rank() + 1) % size, before = (c.rank() + size - 1) % size;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
        for (const int64_t part : {int64_t{0}, int64_t{1}, int64_t{255}, large}) {
            const int64_t count = part * size;
            const at::Tensor mine = values_of(own, count, type), expected = sum_of(members, count, type);
            const auto part_of = [&](const at::Tensor& all, int rank) { return all.narrow(0, rank * part, part); };
            at::Tensor sum = mine.clone();
            c.all_reduce(sum, "a test's sum");
            EXPECT_TRUE(at::equal(sum, expected)) << type << " " << part;

            at::Tensor scattered = at::empty({part}, type);
            c.reduce_scatter(mine, scattered, "a test's parts");
            EXPECT_TRUE(at::equal(scattered, part_of(expected, c.rank()))) << type << " " << part;
            at::Tensor in_place = mine.clone();
            c.reduce_scatter(in_place, part_of(in_place, c.rank()), "a test's parts in place");
            EXPECT_TRUE(at::equal(part_of(in_place, c.rank()), scattered));
            EXPECT_TRUE(at::equal(part_of(in_place, next), next == c.rank() ? scattered : part_of(mine, next)));

            at::Tensor gathered = at::empty({count}, type);
            c.all_gather(scattered, gathered, "a test's whole");
            EXPECT_TRUE(at::equal(gathered, expected)) << type << " " << part;
            c.all_gather(part_of(in_place, c.rank()), in_place, "a test's whole in place");
            EXPECT_TRUE(at::equal(in_place, expected));

            for (int root = 0; root < size; ++root) {
                at::Tensor reduced = mine.clone();
                c.reduce(reduced, root, "a test's sum of one");
                EXPECT_TRUE(root != c.rank() || at::equal(reduced, expected)) << type << " " << part;
                at::Tensor sent = mine.clone();
                c.broadcast(sent, root, "a test's values");
                EXPECT_TRUE(at::equal(sent, values_of(members[static_cast<std::size_t>(root)], count, type)));
            }
            // Round the ring; the first one receives first, since a send may wait.
            at::Tensor got = at::empty({count}, type);
            if (c.rank() > 0) c.send(mine, next, "a test's message");
            c.receive(got, before, "a test's message");
            if (c.rank() == 0) c.send(mine, next, "a test's message");
            EXPECT_TRUE(at::equal(got, values_of(members[static_cast<std::size_t>(before)], count, type)));
        }
}

TEST(Communicator, AllOperationsAmongThree) {
    on_ranks(3, [](Group& group) { try_all(group.all(), {0, 1, 2}, group.rank()); });
}

TEST(Communicator, PartsOfTheRanksWorkSideBySide) {
    on_ranks(4, [](Group& group) {
        const std::vector<int> members = group.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
        const auto half = group.make_communicator(members, "half");
        try_all(*half, members, group.rank());
    });
}

TEST(Communicator, ThroughTheStoreSumsAreTheSame) {
    const int port = free_port();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([rank, port] {
            Exchange exchange(rank_of(rank, 2, port), std::chrono::seconds(20));
            const auto all = make_store_communicator(exchange, {0, 1}, "all");
            for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
                const at::Tensor expected = sum_of({0, 1}, 1000, type);
                at::Tensor sum = values_of(rank, 1000, type), part = at::empty({500}, type);
                all->reduce_scatter(sum, part, "a test's parts");
                EXPECT_TRUE(at::equal(part, expected.narrow(0, 500 * rank, 500)));
                at::Tensor whole = at::empty({1000}, type);
                all->all_gather(part, whole, "a test's whole");
                EXPECT_TRUE(at::equal(whole, expected));
                at::Tensor reduced = sum.clone();
                all->reduce(reduced, 1, "a test's sum of one");
                EXPECT_TRUE(rank != 1 || at::equal(reduced, expected));
                all->all_reduce(sum, "a test's sum");
                EXPECT_TRUE(at::equal(sum, expected));
                at::Tensor sent = values_of(rank, 77, type);
                all->broadcast(sent, 1, "a test's values");
                EXPECT_TRUE(at::equal(sent, values_of(1, 77, type)));
            }
        });
    for (std::thread& thread : threads) thread.join();
}

TEST(Communicator, OtherSizesAreRefusedByAllAndNamed) {
    on_ranks(2, [](Group& group) {
        at::Tensor own = at::ones({group.rank() == 0 ? 4 : 5}), all = at::empty({2 * own.numel()});
        try {
            group.all().all_gather(own, all, "a test's whole");
            ADD_FAILURE();
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what())
                          .find(cat("rank ", 1 - group.rank(), " sent ", group.rank() == 0 ? 20 : 16,
                                    " bytes as a test's whole (all-gather, all of ranks 0, 1), expected ",
                                    group.rank() == 0 ? 16 : 20)),
                      std::string::npos)
                << error.what();
        }
    });
}

TEST(Communicator, AMemberThatDoesNotComeIsNamed) {
    on_ranks(
        2,
        [](Group& group) {
            at::Tensor x = at::ones({4});
            if (group.rank() == 1) return group.all().receive(x, 0, "activations of micro-batch 1");
            group.all().send(x, 1, "activations of micro-batch 1");
            try {
                group.all().receive(x, 1, "gradients of micro-batch 1");
                ADD_FAILURE();
            } catch (const Error& error) {
                EXPECT_NE(std::string(error.what())
                              .find(cat("rank 1 (", host_name(),
                                        ") did not come to gradients of micro-batch 1 (receive, all of ranks 0, 1)")),
                          std::string::npos)
                    << error.what();
            }
        },
        std::chrono::seconds(2));
}

/// Who reads it knows then which of the mesh's axes hangs.
TEST(Communicator, AMissingMemberIsNamedWithItsHostGroupAndCollective) {
    std::vector<std::string> messages(4);
    on_ranks(
        4,
        [&](Group& group) {
            const int odd = group.rank() % 2;
            const auto half = group.make_communicator({odd, odd + 2}, "half");
            EXPECT_EQ(half->name(), cat("half of ranks ", odd, ", ", odd + 2));
            if (group.rank() == 3) return;
            try {
                half->reduce_scatter(at::ones({4}), at::empty({2}), "the sums of step 2");
                EXPECT_EQ(odd, 0);
            } catch (const Error& error) {
                messages[static_cast<std::size_t>(group.rank())] = error.what();
            }
        },
        std::chrono::seconds(2));
    EXPECT_EQ(messages[0] + messages[2], "");
    EXPECT_NE(messages[1].find(cat("rank 3 (", host_name(),
                                   ") did not come to the sums of step 2 (reduce-scatter, half of ranks 1, 3) within")),
              std::string::npos)
        << messages[1];
}

TEST(SharedSegment, IsOpenedByItsOwnMarkAlone) {
    const auto made = SharedSegment::make(100);
    const std::string address = made->address();
    made->data()[99] = std::byte{7};
    const auto opened = SharedSegment::open(address, 100);
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->data()[99], std::byte{7});
    opened->data()[0] = std::byte{9};
    EXPECT_EQ(made->data()[0], std::byte{9});
    std::string other = address;
    other.back() = other.back() == '0' ? '1' : '0';
    EXPECT_EQ(SharedSegment::open(other, 100), nullptr) << "another mark";
    EXPECT_EQ(SharedSegment::open(address, 101), nullptr) << "another size";
    EXPECT_EQ(SharedSegment::open("1 2", 100), nullptr);
    EXPECT_EQ(SharedSegment::open("", 100), nullptr);
    made->close();
    EXPECT_EQ(SharedSegment::open(address, 100), nullptr) << "closed";
}

TEST(Mesh, WhatTheSizesLeaveIsDataParallel) {
    EXPECT_EQ(mesh_shape(8, 2, 1, 1), (MeshShape{.dp = 4, .cp = 1, .tp = 2, .pp = 1}));
    EXPECT_EQ(mesh_shape(8, 2, 2, 2), (MeshShape{.dp = 1, .cp = 2, .tp = 2, .pp = 2}));
    const auto refusal = [](int processes, int64_t tp, int64_t pp, int64_t cp) -> std::string {
        try {
            mesh_shape(processes, tp, pp, cp);
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), "parallel.wrong-rank-count");
            return error.what();
        }
        return "";
    };
    EXPECT_NE(refusal(6, 4, 1, 1).find("but there are 6 processes"), std::string::npos);
    EXPECT_NE(refusal(6, 4, 1, 1).find("Start 4 or 8 processes"), std::string::npos);
    EXPECT_NE(refusal(1, 2, 1, 1).find("Start 2 processes"), std::string::npos);
}

TEST(Mesh, NeighboursInRankAreNeighboursInTensorParallel) {
    const MeshShape shape{.dp = 2, .cp = 2, .tp = 2, .pp = 2};
    for (int rank = 0; rank < shape.size(); ++rank) {
        const MeshShape at = coordinates(shape, rank);
        EXPECT_EQ(((at.pp * 2 + at.dp) * 2 + at.cp) * 2 + at.tp, rank);
    }
}

TEST(Mesh, HasACommunicatorForEachAxis) {
    on_ranks(4, [](Group& group) {
        const Mesh mesh(group, {.dp = 2, .cp = 1, .tp = 2, .pp = 1});
        EXPECT_EQ(mesh.cp(), nullptr);
        EXPECT_EQ(mesh.pp(), nullptr);
        const int r = group.rank();
        ASSERT_EQ(mesh.tp()->ranks(), (r < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}));
        ASSERT_EQ(mesh.dp()->ranks(), (r % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3}));
        at::Tensor x = at::full({1}, static_cast<float>(1 << r));
        mesh.dp()->all_reduce(x, "a test's sum");
        EXPECT_EQ(x.item<float>(), r % 2 == 0 ? 5.F : 10.F);
        mesh.tp()->all_reduce(x, "a test's sum");
        EXPECT_EQ(x.item<float>(), 15.F);
        EXPECT_EQ(mesh.stage(), &group.all());
        EXPECT_EQ(mesh.copies_here(), mesh.dp());
        const Mesh alone(group, {.dp = 4});
        EXPECT_EQ(alone.dp(), &group.all());
        const Mesh rows(group, {.dp = 2, .cp = 2});
        EXPECT_EQ(rows.copies_here()->ranks(), group.all().ranks());
        EXPECT_EQ(rows.cp()->ranks(), (r < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}));
    });
}

TEST(Mesh, CopiesDifferInRowsAndTokensAlone) {
    on_ranks(8, [](Group& group) {
        const Mesh mesh(group, {.dp = 2, .cp = 2, .tp = 2});
        const int tp = group.rank() % 2;
        EXPECT_EQ(mesh.copies_here()->ranks(), (std::vector<int>{tp, 2 + tp, 4 + tp, 6 + tp}));
    });
}

/// What goes up does not wait for what goes down: each rank first sends more than a mailbox holds, both ways.
TEST(Mesh, LinksThePipelinesRanksEachWay) {
    for (const bool ring : {false, true})
        for (const int size : {2, 3, 4})
            on_ranks(size, [&](Group& group) {
                const Mesh mesh(group, {.pp = size}, ring);
                const PipelineLinks& links = mesh.links();
                const int r = group.rank(), above = (r + 1) % size, below = (r + size - 1) % size;
                EXPECT_EQ(mesh.stage(), nullptr);
                EXPECT_EQ(mesh.ends() != nullptr, r == 0 || r == size - 1);
                EXPECT_EQ(links.to_above != nullptr, ring || r < size - 1);
                EXPECT_EQ(links.from_below != nullptr, ring || r > 0);
                const auto at = [&](float value) { return at::full({300000}, value); };
                std::vector<std::unique_ptr<Message>> sent;
                for (int message = 0; message < 2; ++message) {
                    const float value = static_cast<float>(10 * r + message);
                    if (links.to_above != nullptr)
                        sent.push_back(links.to_above->send_async(at(value), 1 - links.to_above->rank(), "up"));
                    if (links.to_below != nullptr)
                        sent.push_back(links.to_below->send_async(at(-value), 1 - links.to_below->rank(), "down"));
                }
                for (int message = 0; message < 2; ++message) {
                    at::Tensor got = at(0);
                    if (links.from_above != nullptr) {
                        links.from_above->receive(got, 1 - links.from_above->rank(), "down");
                        EXPECT_TRUE(at::equal(got, at(static_cast<float>(-10 * above - message))));
                    }
                    if (links.from_below != nullptr) {
                        links.from_below->receive(got, 1 - links.from_below->rank(), "up");
                        EXPECT_TRUE(at::equal(got, at(static_cast<float>(10 * below + message))));
                    }
                }
                for (const auto& message : sent) message->wait();
            });
}

TEST(Mesh, PipelinesHaveRanksOfOneStageAndEnds) {
    on_ranks(6, [](Group& group) {
        const Mesh mesh(group, {.dp = 2, .cp = 1, .tp = 1, .pp = 3});
        const int r = group.rank();
        EXPECT_EQ(mesh.stage()->ranks(), (std::vector<int>{r / 2 * 2, r / 2 * 2 + 1}));
        EXPECT_EQ(mesh.pp()->ranks(), (std::vector<int>{r % 2, r % 2 + 2, r % 2 + 4}));
        if (r / 2 == 1)
            EXPECT_EQ(mesh.ends(), nullptr);
        else
            EXPECT_EQ(mesh.ends()->ranks(), (std::vector<int>{r % 2, r % 2 + 4}));
    });
}

/// Of the rank that has most: some have fewer, none others.
TEST(Mesh, HasAsManyCommunicatorsAsArePlannedFor) {
    const auto sizes_of = [](Group& group, const Mesh& mesh) {
        const PipelineLinks& links = mesh.links();
        std::set<Communicator*> all{&group.all(),     mesh.dp(),          mesh.cp(),        mesh.tp(),
                                    mesh.pp(),        mesh.copies_here(), mesh.stage(),     mesh.ends(),
                                    links.from_below, links.to_above,     links.from_above, links.to_below};
        all.erase(nullptr);
        std::vector<int> sizes;
        for (Communicator* const one : all) sizes.push_back(one->size());
        std::sort(sizes.begin(), sizes.end());
        return sizes;
    };
    for (const bool ring : {false, true})
        for (const MeshShape& shape : {MeshShape{.dp = 4},
                                       {.dp = 2, .tp = 2},
                                       {.dp = 2, .cp = 2, .tp = 2},
                                       {.pp = 2},
                                       {.pp = 4},
                                       {.dp = 2, .pp = 3}}) {
            std::vector<int> expected = communicator_sizes(shape, ring);
            std::sort(expected.begin(), expected.end());
            std::atomic<int> equal{0};
            on_ranks(shape.size(), [&](Group& group) {
                const std::vector<int> sizes = sizes_of(group, Mesh(group, shape, ring));
                EXPECT_TRUE(std::includes(expected.begin(), expected.end(), sizes.begin(), sizes.end()));
                equal += sizes == expected;
            });
            EXPECT_GT(equal, 0) << shape.dp << " " << shape.cp << " " << shape.tp << " " << shape.pp << " " << ring;
        }
}

/// A message that nobody takes does not keep a rank that leaves.
TEST(Mesh, ALinkIsLeftWithAMessageUnderWay) {
    on_ranks(2, [](Group& group) {
        const Mesh mesh(group, {.pp = 2});
        if (group.rank() > 0) return;
        for (int message = 0; message < 3; ++message)
            (void)mesh.links().to_above->send_async(at::ones({300000}), 1, "activations that nobody takes");
    });
}

}  // namespace
}  // namespace unsloth::comm
