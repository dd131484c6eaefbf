// Thousands of hostile requests with one seed, and between them a client that asks as it should.
#include <gtest/gtest.h>
#include <malloc.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "http/client.h"
#include "http/service.h"

namespace unsloth::http {
namespace {

namespace fs = std::filesystem;

/// The same numbers with every standard library.
class Draws {
  public:
    explicit Draws(uint64_t seed) : engine_(seed) {}
    size_t below(size_t limit) { return static_cast<size_t>(engine_() % limit); }
    template <class T>
    const T& pick(const std::vector<T>& from) {
        return from[below(from.size())];
    }
    std::string bytes(size_t count) {
        std::string out(count, '\0');
        for (char& c : out) c = static_cast<char>(engine_());
        return out;
    }
    /// A few bytes changed, removed or repeated.
    std::string damaged(std::string text) {
        for (size_t i = below(6) + 1; i > 0 && !text.empty(); --i) {
            const size_t at = below(text.size());
            if (const size_t kind = below(3); kind == 0)
                text[at] = static_cast<char>(engine_());
            else if (kind == 1)
                text.erase(at, below(8) + 1);
            else
                text.insert(at, text.substr(at, below(20) + 1));
        }
        return text;
    }

  private:
    std::mt19937_64 engine_;
};

std::string repeated(size_t count, const std::function<std::string(size_t)>& piece) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += piece(i);
    return out;
}

const std::string valid = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 17\r\n\r\n{\"prompt\": \"abc\"}";

/// Two readers could find different ends of such a request.
std::string smuggling(Draws& draw) {
    static const std::vector<std::string> fields = {"Content-Length: 5\r\nTransfer-Encoding: chunked",
                                                    "Transfer-Encoding: chunked\r\nContent-Length: 5",
                                                    "Content-Length: 5\r\nContent-Length: 50",
                                                    "Content-Length: 5\r\nContent-Length: 5",
                                                    "Content-Length: 5, 5",
                                                    "Content-Length: +5",
                                                    "Content-Length: 5 0",
                                                    "Content-Length: -5",
                                                    "Content-Length: 99999999999999999999",
                                                    "Transfer-Encoding: chunked, identity",
                                                    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
                                                    "Transfer-Encoding: \vchunked",
                                                    "Transfer-Encoding : chunked",
                                                    "X: y\r\n Transfer-Encoding: chunked",
                                                    "X: y\rTransfer-Encoding: chunked",
                                                    "X: y\nTransfer-Encoding: chunked",
                                                    " Transfer-Encoding: chunked",
                                                    "Host: b",
                                                    std::string("X\0: y", 5)};
    return "POST /echo HTTP/1.1\r\nHost: a\r\n" + draw.pick(fields) +
           "\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
}

std::string oversized(Draws& draw) {
    const std::string head = "POST /echo HTTP/1.1\r\nHost: a\r\n";
    switch (draw.below(6)) {
        case 0:
            return "GET /" + std::string(70'000 + draw.below(200'000), 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n";
        case 1:
            return head + "X: " + std::string(70'000, 'x') + "\r\n\r\n";
        case 2:
            return head + repeated(300 + draw.below(3000), [](size_t i) { return "a" + std::to_string(i) + ":\r\n"; });
        case 3:
            return head + "Content-Length: " + std::to_string(9'000'000'000'000'000'000U) + "\r\n\r\nabc";
        case 4:
            return head + "Transfer-Encoding: chunked\r\n\r\n" + std::string(1 + draw.below(20), 'f') + "\r\nabc";
        default:
            return head + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(70'000, 'x');
    }
}

std::string broken_text(Draws& draw) {
    static const std::vector<std::string> texts = {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"};
    const std::string& text = draw.pick(texts);
    std::string encoded;
    for (const char c : text) {
        constexpr const char* digits = "0123456789abcdef";
        const auto byte = static_cast<unsigned char>(c);
        encoded += {'%', digits[byte / 16], digits[byte % 16]};
    }
    const std::string path = draw.below(2) == 0 ? text : encoded;
    return "POST /echo" + path + " HTTP/1.1\r\nHost: a\r\nX: " + text +
           "\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
}

using H2 = Client2;

/// A block of fields that HTTP/2 does not allow, or that grows as it is read.
std::string hostile_block(Draws& draw) {
    std::string block = H2::fields("GET", "/echo");
    switch (draw.below(7)) {
        case 0: {  // each byte names a field of 3,900 bytes again
            std::string field = H2::literal("a", std::string(3900, 'x'));
            field[0] = 0x40;
            return block + field + std::string(8000, '\xbe');
        }
        case 1:
            return block + H2::literal("Upper", "case");
        case 2:
            return block + H2::literal("connection", "close") + H2::literal("transfer-encoding", "chunked");
        case 3:
            return block + H2::literal(":path", "/smuggled") + H2::literal("content-length", "7");
        case 4:
            return H2::literal(":method", "GET") + H2::literal("a\r\nb", "c\r\nd");
        case 5:
            return std::string("\x3f\xff\xff\xff\xff\x0f", 6) + block;  // a table of 4 GB
        default:
            return draw.damaged(block);
    }
}

std::string flood(Draws& draw) {
    const size_t count = 1200 + draw.below(800);
    const auto stream = [](size_t i) { return static_cast<uint32_t>(2 * i + 1); };
    const std::string ask = H2::fields("GET", "/echo");
    switch (draw.below(10)) {
        case 0:  // rapid reset
            return repeated(count, [&](size_t i) {
                return H2::bytes_of(1, 5, stream(i), ask) + H2::bytes_of(3, 0, stream(i), H2::number(8));
            });
        case 1:  // the server must reset
            return repeated(count, [&](size_t i) {
                return H2::bytes_of(1, 4, stream(i), ask) + H2::bytes_of(8, 0, stream(i), H2::number(0x7fffffff));
            });
        case 2:
            return repeated(count, [&](size_t i) { return H2::bytes_of(1, 4, stream(i), ask); });
        case 3:
            return H2::bytes_of(1, 0, 1, ask) +
                   repeated(count, [](size_t) { return H2::bytes_of(9, 0, 1, H2::literal("a", "b")); });
        case 4:
            return H2::bytes_of(1, 0, 1, ask) + repeated(count, [](size_t) { return H2::bytes_of(9, 0, 1, ""); });
        case 5:
            return repeated(count, [](size_t) { return H2::bytes_of(6, 0, 0, "12345678"); });
        case 6:
            return repeated(count, [](size_t i) {
                return H2::bytes_of(4, 0, 0, std::string("\0\4", 2) + H2::number(static_cast<uint32_t>(i)));
            });
        case 7:
            return H2::bytes_of(1, 4, 1, ask) + repeated(count, [](size_t) { return H2::bytes_of(0, 0, 1, ""); });
        case 8:
            return repeated(count, [&](size_t i) {
                return H2::bytes_of(2, 0, stream(i), H2::number(static_cast<uint32_t>(i)) + "x");
            });
        default:
            return repeated(count, [](size_t) { return H2::bytes_of(8, 0, 0, H2::number(1)); });
    }
}

std::string frames(Draws& draw) {
    return repeated(draw.below(20) + 1, [&](size_t) {
        return H2::bytes_of(static_cast<int>(draw.below(12)), static_cast<int>(draw.below(256)),
                            static_cast<uint32_t>(draw.below(6)), draw.bytes(draw.below(300)));
    });
}

size_t open_descriptors() {
    return static_cast<size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

int64_t resident_bytes() {
    ::malloc_trim(0);
    int64_t whole = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> whole >> resident;
    return resident * 4096;
}

class Hostile : public ::testing::Test {
  protected:
    /// `count` connections. Some stay half open, and send a byte at times, while others come.
    void attack(int count) {
        std::deque<std::pair<Client, std::string>> slow;
        for (int i = 0; i < count; ++i) {
            const size_t kind = draw_.below(20);
            if (kind < 12)
                first_version(slow);
            else
                second_version(kind);
            if (i % 20 == 0) ask_as_one_should();
            if (slow.empty()) continue;
            auto& [client, rest] = slow[draw_.below(slow.size())];
            if (!rest.empty() && client.send(rest.substr(0, 1))) rest.erase(0, 1);
            if (slow.size() > 100) slow.pop_front();
        }
    }

    /// Throws where an answer does not come.
    void ask_as_one_should() {
        first_.send(valid);
        const auto [head, body] = first_.answer();
        ASSERT_TRUE(head.starts_with("HTTP/1.1 200")) << head;
        ASSERT_EQ(body, "POST  {\"prompt\": \"abc\"}");
        second_.answers.clear();
        second_.ask(stream_, "GET", "/echo");
        ASSERT_EQ(second_.await(stream_).body, "GET  ");
        stream_ += 2;
    }

    Service service_;

  private:
    Draws draw_{20261128};
    Client first_{service_.server.port()};
    Client2 second_{service_.server.port()};
    uint32_t stream_ = 1;

    void first_version(std::deque<std::pair<Client, std::string>>& slow) {
        Client client(service_.server.port());
        const size_t kind = draw_.below(7);
        if (kind == 0) {
            const size_t cut = draw_.below(valid.size() - 1) + 1;
            client.send(valid.substr(0, cut));
            if (draw_.below(3) == 0) client.half_close();
            slow.emplace_back(std::move(client), valid.substr(cut, valid.size() - cut - 1));
            return;
        }
        const std::string bytes = kind == 1   ? smuggling(draw_)
                                  : kind == 2 ? oversized(draw_)
                                  : kind == 3 ? broken_text(draw_)
                                  : kind == 4 ? draw_.bytes(draw_.below(3000) + 1)
                                  : kind == 5 ? repeated(200, [](size_t) { return valid; })
                                              : draw_.damaged(valid + valid);
        client.send(bytes);
        if (kind == 5 || draw_.below(4) == 0) return;  // leaves, whatever was said
        if (kind != 1) client.half_close();
        const std::string all = client.rest();
        if (kind != 1) return;
        EXPECT_TRUE(all.starts_with("HTTP/1.1 4") || all.starts_with("HTTP/1.1 501")) << bytes << all;
        EXPECT_EQ(all.find("/smuggled"), std::string::npos) << bytes << all;
    }

    void second_version(size_t kind) {
        Client2 client(service_.server.port());
        const std::string ask = H2::bytes_of(1, 4, 1, H2::fields("POST", "/echo")) + H2::bytes_of(0, 1, 1, "abc");
        client.send(kind < 14   ? H2::bytes_of(1, 5, 1, hostile_block(draw_))
                    : kind < 16 ? flood(draw_)
                    : kind < 18 ? frames(draw_)
                                : draw_.damaged(ask + ask));
        if (draw_.below(4) == 0) return;
        client.half_close();
        client.rest();
    }
};

TEST_F(Hostile, TwoThousandRequestsHurtNobodyElse) {
    ask_as_one_should();
    const size_t descriptors = open_descriptors();
    const auto settle = [&] {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
        while (open_descriptors() > descriptors && std::chrono::steady_clock::now() < until) ask_as_one_should();
        EXPECT_LE(open_descriptors(), descriptors) << "connections that ended stay open";
    };
    attack(300);  // memory that is taken once
    settle();
    const int64_t before = resident_bytes();
    attack(2000);
    settle();
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory
    EXPECT_LT(resident_bytes() - before, 8 << 20) << "memory grows with the requests";
#endif
}

TEST(HeldRequests, TogetherHaveALimit) {
    ServerOptions options;
    options.body_bytes = 100'000;
    options.held_bytes = 150'000;
    Service service(options);
    Client2 client(service.server.port());
    client.next();  // SETTINGS, with the window
    const auto begin = [&](uint32_t stream) {
        client.ask(stream, "POST", "/echo", true);
        for (int i = 0; i < 9; ++i) client.frame(0, 0, stream, std::string(10'000, 'x'));
    };
    begin(1);
    begin(3);
    EXPECT_EQ(client.await(3).headers[":status"], "503");
    Client other(service.server.port());
    other.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + std::string(90'000, 'x'));
    EXPECT_TRUE(other.rest().starts_with("HTTP/1.1 503"));
    client.ask(9, "GET", "/echo");
    EXPECT_EQ(client.await(9).headers[":status"], "200") << "whole requests are answered still";
    for (const uint32_t stream : {1U, 11U, 13U}) {  // what has arrived is not held any more
        if (stream > 1) begin(stream);
        client.frame(0, 1, stream, "");
        EXPECT_EQ(client.await(stream).body.size(), 90'000U + 6) << stream;
    }
}

}  // namespace
}  // namespace unsloth::http
