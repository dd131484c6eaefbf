#include "comm/rank_store.h"

#include <gtest/gtest.h>

#include "comm/store_server.h"

namespace unsloth::comm {
namespace {

TEST(RankStore, IsAC10dStore) {
    const std::string secret = "a secret of sixteen or more";
    const StoreServer server(listen_at(0, /*anywhere=*/false), {secret, 2, 1, true});
    const auto rendezvous = [&](uint32_t rank) { return Rendezvous{loopback(server.port()), rank, 2, 1, secret}; };
    RankStore one(rendezvous(0), std::chrono::seconds(1)), two(rendezvous(1), std::chrono::seconds(1));
    one.set("id", std::vector<uint8_t>{1, 2, 3});
    two.wait({"id"});
    EXPECT_EQ(two.get("id"), (std::vector<uint8_t>{1, 2, 3}));
    EXPECT_TRUE(two.check({"id"}));
    EXPECT_FALSE(two.check({"id", "other"}));
    EXPECT_EQ(two.add("count", 2), 2);
    EXPECT_EQ(one.get_to_str("count"), "2");
    EXPECT_THROW(two.get("other"), StoreGone);
}

}  // namespace
}  // namespace unsloth::comm
