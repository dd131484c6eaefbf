// The ranks' store, and those who have no business there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "comm/store_client.h"
#include "comm/store_server.h"

namespace unsloth::comm {
namespace {

const std::string secret = "a secret of sixteen or more";

Clock::time_point soon(int ms = 3000) {
    return Clock::now() + milliseconds(ms);
}

/// A store of three ranks and its port.
struct Served {
    explicit Served(bool seals, std::string known = secret)
        : server(listen_at(0, /*anywhere=*/false), {std::move(known), 3, 1, seals}) {}
    Rendezvous rendezvous(uint32_t rank, std::string known = secret) const {
        return {loopback(server.port()), rank, 3, 1, std::move(known)};
    }
    StoreServer server;
};

std::string text(const std::optional<std::vector<uint8_t>>& value) {
    return value ? std::string(value->begin(), value->end()) : "absent";
}

class Store : public ::testing::TestWithParam<bool> {};

TEST_P(Store, KeepsValuesAndSignsOfLife) {
    const Served served(GetParam());
    StoreClient one(served.rendezvous(1), soon()), two(served.rendezvous(2), soon());
    EXPECT_EQ(text(two.get("k", milliseconds(10))), "absent");
    std::thread later([&] {
        std::this_thread::sleep_for(milliseconds(50));
        one.set("k", bytes_of("value"));
    });
    EXPECT_EQ(text(two.get("k", milliseconds(5000))), "value") << "it comes while the other waits";
    later.join();
    one.set("k", {});
    EXPECT_EQ(text(two.get("k", milliseconds(0))), "") << "of no bytes, but there";
    EXPECT_TRUE(two.remove("k"));
    EXPECT_FALSE(two.remove("k"));
    EXPECT_EQ(one.add("n", 3), 3);
    EXPECT_EQ(two.add("n", -1), 2);
    EXPECT_EQ(one.signs("I live").size(), 3U);
    EXPECT_EQ(two.signs("I too"), (std::vector<std::string>{"", "I live", "I too"}));
    EXPECT_EQ(one.signs(std::string(10000, 'x'))[1].size(), longest_sign);
}

TEST_P(Store, MovesLargeValues) {
    const Served served(GetParam());
    StoreClient one(served.rendezvous(0), soon()), two(served.rendezvous(1), soon());
    std::vector<uint8_t> large(5 * piece_bytes + 77);
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<uint8_t>(i * 2654435761U >> 24);
    one.set("large", large);
    EXPECT_EQ(two.get("large", milliseconds(0)), large);
}

INSTANTIATE_TEST_SUITE_P(Frames, Store, ::testing::Bool(),
                         [](const auto& chosen) { return chosen.param ? "sealed" : "plain"; });

std::string refusal(const Rendezvous& rendezvous) {
    try {
        const StoreClient client(rendezvous, soon(300));
        return "let in";
    } catch (const StoreGone& gone) {
        return gone.what();
    }
}

TEST(Strangers, AreNotLetIn) {
    const Served served(true);
    EXPECT_EQ(refusal(served.rendezvous(1)), "let in");
    EXPECT_NE(refusal(served.rendezvous(1, "another secret of the same kind")).find("does not know this run's secret"),
              std::string::npos);
    EXPECT_NE(refusal(served.rendezvous(1, "")).find("does not know this run's secret"), std::string::npos);
    Rendezvous other = served.rendezvous(1);
    other.run = 0;
    EXPECT_NE(refusal(other).find("does not let this rank in"), std::string::npos) << "of an earlier start";
    EXPECT_NE(refusal(served.rendezvous(3)).find("does not let this rank in"), std::string::npos)
        << "there is no rank 3";
}

/// A connection that says whatever it likes.
struct Raw {
    explicit Raw(int port) : socket(connect_to(loopback(port), milliseconds(1000))) {}
    void send(Bytes bytes) const {
        [[maybe_unused]] const auto sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    /// Whether the store closes it in time.
    bool closed(int ms = 3000) const {
        const auto give_up = soon(ms);
        while (Clock::now() < give_up) {
            pollfd waits{socket.fd(), POLLIN, 0};
            ::poll(&waits, 1, 50);
            char bytes[4096];
            const ssize_t got = ::recv(socket.fd(), bytes, sizeof bytes, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
        }
        return false;
    }
    Socket socket;
};

TEST(Strangers, JunkAndRequestsWithoutAProofEndTheConnection) {
    const Served served(true);
    StoreClient rank(served.rendezvous(1), soon());
    rank.set("0/1", bytes_of("gradients"));
    const std::vector<uint8_t> junk(1 << 20, 0x55);
    const Raw junky(served.server.port());
    junky.send(junk);
    EXPECT_TRUE(junky.closed());
    // A greeting as it should be, and then requests: c10d's store would have taken the first.
    const Raw forger(served.server.port());
    const Hello hello{wire_magic, 1, 3, 1, random_bytes()};
    forger.send({reinterpret_cast<const uint8_t*>(&hello), sizeof hello});
    Seal none;
    FrameWriter frame(none, {Op::set}, "0/1", bytes_of("forged"));
    forger.send(frame.next());
    forger.send(std::vector<uint8_t>(64));
    EXPECT_TRUE(forger.closed());
    EXPECT_EQ(text(rank.get("0/1", milliseconds(0))), "gradients");
}

// What passes between the machines is changed on the way, byte by byte.
TEST(Strangers, AChangedByteEndsTheConnection) {
    const Served served(true);
    const Digest key = random_bytes();
    Seal out(key);
    const std::string value = "0.125";
    FrameWriter frame(out, {Op::set}, "0/1", bytes_of(value));
    std::vector<uint8_t> wire;
    for (Bytes next = frame.next(); !next.empty(); next = frame.next()) {
        wire.insert(wire.end(), next.begin(), next.end());
        frame.sent(next.size());
    }
    const auto take = [&](const std::vector<uint8_t>& bytes, uint64_t earlier) {
        Seal in(key);
        for (uint64_t i = 0; i < earlier; ++i) in.next();
        FrameReader reader(in, /*takes_requests=*/true);
        for (std::size_t at = 0; at < bytes.size();) {
            const auto room = reader.room();
            const std::size_t count = std::min(room.size(), bytes.size() - at);
            std::memcpy(room.data(), bytes.data() + at, count);
            at += count;
            if (reader.filled(count)) break;
        }
        return std::string(reader.body().begin(), reader.body().end());
    };
    EXPECT_EQ(take(wire, 0), value);
    EXPECT_THROW(take(wire, 1), Garbled) << "the same message again";
    for (std::size_t i = 0; i < wire.size(); ++i) {
        std::vector<uint8_t> changed = wire;
        changed[i] ^= 1;
        EXPECT_THROW(take(changed, 0), Garbled) << "byte " << i;
    }
}

int descriptors() {
    int count = 0;
    for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
}

TEST(Strangers, IdleConnectionsAreFewAndDoNotKeepARankOut) {
    const Served served(false);
    StoreClient before(served.rendezvous(1), soon());
    const int own = descriptors();
    std::deque<Raw> idle;
    for (int i = 0; i < 300; ++i) idle.emplace_back(served.server.port());
    StoreClient late(served.rendezvous(2), soon());
    late.set("k", bytes_of("value"));
    EXPECT_EQ(text(before.get("k", milliseconds(1000))), "value");
    EXPECT_LE(descriptors() - own, 300 + static_cast<int>(StoreServer::most_unauthenticated) + 4);
}

// "A connection that has not proved within 5 s that it is a rank's is dropped."
TEST(Strangers, WhoProvesNothingInTimeIsDropped) {
    EXPECT_EQ(StoreServer::Settings().handshake_time, milliseconds(5000));
    const StoreServer server(listen_at(0, /*anywhere=*/false),
                             {.size = 3, .run = 1, .handshake_time = milliseconds(100)});
    const Raw silent(server.port()), greets(server.port());
    const Hello hello{wire_magic, 1, 3, 1, random_bytes()};
    greets.send({reinterpret_cast<const uint8_t*>(&hello), sizeof hello});
    EXPECT_TRUE(silent.closed());
    EXPECT_TRUE(greets.closed()) << "a greeting is no proof";
    StoreClient rank({loopback(server.port()), 1, 3, 1, ""}, soon());
    rank.set("k", bytes_of("value"));
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(text(rank.get("k", milliseconds(0))), "value") << "a rank may be silent for longer";
}

TEST(Strangers, ALengthThatNobodySentIsNotReservedInFull) {
    // A rank's own head with a size of 64 GiB, and then nothing.
    Seal none;
    FrameReader reader(none, /*takes_requests=*/true);
    const Head head{.op = Op::set, .key_size = 1, .size = largest_value};
    std::memcpy(reader.room().data(), &head, sizeof head);
    EXPECT_FALSE(reader.filled(sizeof head));
    EXPECT_LE(reader.body().capacity(), 64 * piece_bytes);
    const Head larger{.op = Op::set, .key_size = 1, .size = largest_value + 1};
    FrameReader other(none, true);
    std::memcpy(other.room().data(), &larger, sizeof larger);
    EXPECT_THROW(other.filled(sizeof larger), Garbled);
}

TEST(Strangers, RepliesThatNobodyReadsDoNotPileUp) {
    const Served served(false, "");
    StoreClient rank(served.rendezvous(1, ""), soon());
    rank.set("large", std::vector<uint8_t>(8 << 20));
    // The same proofs as a rank's, since there is no secret; then a thousand requests for 8 MiB, no reply taken.
    Raw greedy(served.server.port());
    const Hello hello{wire_magic, 2, 3, 1, random_bytes()};
    greedy.send({reinterpret_cast<const uint8_t*>(&hello), sizeof hello});
    Welcome welcome{};
    for (std::size_t got = 0; got < sizeof welcome;) {
        const ssize_t more =
            ::recv(greedy.socket.fd(), reinterpret_cast<uint8_t*>(&welcome) + got, sizeof welcome - got, 0);
        if (more > 0) got += static_cast<std::size_t>(more);
    }
    greedy.send(derive("", "rank", hello, welcome));
    Seal none;
    for (int i = 0; i < 1000; ++i) {
        FrameWriter frame(none, {Op::get}, "large", {});
        greedy.send(frame.next());
    }
    const auto resident = [] {
        std::ifstream file("/proc/self/statm");
        int64_t total = 0, pages = 0;
        file >> total >> pages;
        return pages * ::sysconf(_SC_PAGESIZE) >> 20;
    };
    const int64_t before = resident();
    std::this_thread::sleep_for(milliseconds(200));
    rank.set("small", bytes_of("x"));
    EXPECT_EQ(text(rank.get("small", milliseconds(0))), "x");
    EXPECT_LT(resident() - before, 64);
}

}  // namespace
}  // namespace unsloth::comm
