#include <gtest/gtest.h>

#include "http/client.h"
#include "http/service.h"

namespace unsloth::http {
namespace {

constexpr int end_stream = 1, end_headers = 4;

/// Sends until the server closes the connection; true when it did. It must not take all of `most`.
bool closed_while_sending(Client2& client, const std::string& piece, int most) {
    for (int i = 0; i < most; ++i)
        if (!client.send(piece)) return true;
    client.rest();
    return true;  // rest() throws where the server keeps the connection
}

TEST(Http2, AnswersWithBodiesAndTrailers) {
    Service service;
    Client2 client(service.server.port());
    client.ask(1, "POST", "/echo?q=1", true);
    client.frame(0, 0, 1, "hel");
    client.frame(0, end_stream, 1, "lo");
    client.ask(3, "POST", "/stream");
    client.ask(5, "HEAD", "/echo");
    client.ask(7, "GET", "/throw");
    client.ask(9, "GET", "/a%2Fb");
    EXPECT_EQ(client.await(1).body, "POST q=1 hello");
    EXPECT_EQ(client.answers[1].headers[":status"], "200");
    EXPECT_EQ(client.answers[1].headers["content-length"], "14");
    EXPECT_EQ(client.await(3).body, "aaabbbcccdddeee");
    EXPECT_EQ(client.answers[3].trailers["grpc-status"], "0");
    EXPECT_EQ(client.await(5).body, "");
    EXPECT_EQ(client.answers[5].headers["content-length"], "6");
    EXPECT_EQ(client.await(7).headers[":status"], "500");
    EXPECT_EQ(client.await(9).headers["x-path"], "/a/b");
}

TEST(Http2, RefusesWhatIsTooLargeOrMalformed) {
    ServerOptions options;
    options.header_bytes = 2000;
    options.body_bytes = 3000;
    Service service(options);
    Client2 client(service.server.port());
    client.frame(1, end_headers | end_stream, 1,
                 Client2::fields("GET", "/") + Client2::literal("x", std::string(3000, 'x')));
    EXPECT_EQ(client.await(1).headers[":status"], "431");
    client.ask(3, "POST", "/echo", true);
    client.frame(0, 0, 3, std::string(4000, 'x'));
    EXPECT_EQ(client.await(3).headers[":status"], "413");
    client.ask(5, "GET", "/%00");
    EXPECT_EQ(client.await(5).headers[":status"], "400");
    client.frame(1, end_headers | end_stream, 7,
                 Client2::literal(":method", "CONNECT") + Client2::literal(":authority", "a:1"));
    EXPECT_EQ(client.await(7).headers[":status"], "501");
    // A body of another length than it declares, an upper-case name, a field of connections: nghttp2 resets.
    client.frame(1, end_headers, 9, Client2::fields("POST", "/echo") + Client2::literal("content-length", "5"));
    client.frame(0, end_stream, 9, "abc");
    client.frame(1, end_headers | end_stream, 11, Client2::fields("GET", "/") + Client2::literal("X", "y"));
    client.frame(1, end_headers | end_stream, 13,
                 Client2::fields("GET", "/") + Client2::literal("transfer-encoding", "chunked"));
    for (const uint32_t stream : {9U, 11U, 13U}) EXPECT_GT(client.await(stream).reset, 0) << stream;
    client.ask(15, "GET", "/echo");
    EXPECT_EQ(client.await(15).body, "GET  ");
    EXPECT_EQ(service.handled(), 1);
}

TEST(Http2, TellsOfResetStreamsAlone) {
    Service service;
    Client2 client(service.server.port());
    client.ask(1, "GET", "/wait");
    const auto first = service.waiting();
    client.ask(3, "GET", "/wait");
    const auto second = service.waiting();
    client.frame(3, 0, 1, Client2::number(8));
    EXPECT_TRUE(service.left(1));
    EXPECT_FALSE(first->write("x"));
    EXPECT_TRUE(second->write("y"));
    second->end();
    EXPECT_EQ(client.await(3).body, "y");
    first->end();
    client.ask(5, "GET", "/wait");
    const auto third = service.waiting();
    client.leave();
    EXPECT_TRUE(service.left(2));
    third->end();
}

TEST(Http2, DropsTheStreamThatIsNotRead) {
    ServerOptions options;
    options.buffered_bytes = 100'000;
    Service service(options);
    Client2 client(service.server.port());
    client.read_stream_data = false;  // its window stays 65,535 bytes
    client.ask(1, "GET", "/wait");
    const auto response = service.waiting();
    const std::string piece(20'000, 'x');
    size_t sent = 0;
    while (response->write(piece)) ASSERT_LT(sent += piece.size(), size_t{1} << 24);
    EXPECT_TRUE(service.left(1));
    EXPECT_GT(client.await(1).reset, 0);
    client.ask(3, "HEAD", "/echo");
    EXPECT_EQ(client.await(3).headers[":status"], "200");
    response->end();
}

TEST(Http2, StreamsMoreThanTheWindowsHold) {
    Service service;
    Client2 client(service.server.port());
    client.ask(1, "GET", "/wait");
    const auto response = service.waiting();
    std::thread writer([&] {
        for (int i = 0; i < 100; ++i) EXPECT_TRUE(response->write(std::string(10'000, 'x')));
        response->end({{"grpc-status", "0"}});
    });
    EXPECT_EQ(client.await(1).body.size(), 1'000'000U);
    EXPECT_EQ(client.answers[1].trailers["grpc-status"], "0");
    writer.join();
}

TEST(Http2, TakesLongBodies) {
    Service service;
    Client2 client(service.server.port());
    client.ask(1, "POST", "/echo", true);
    for (int i = 0; i < 60; ++i) client.frame(0, i == 59 ? end_stream : 0, 1, std::string(16'000, 'x'));
    EXPECT_EQ(client.await(1).body.size(), 960'006U);
}

TEST(Http2, HandsOverBodiesInPieces) {
    ServerOptions options;
    options.body_bytes = 3000;
    options.takes_pieces = [](const Request& header) { return header.path == "/pieces"; };
    Service service(options);
    Client2 client(service.server.port());
    const auto body_of = [&](uint32_t stream, const std::string& body) {
        while (client.answers[stream].body.size() < body.size() && client.next().type >= 0) {
        }
        return client.answers[stream].body;
    };
    client.ask(1, "POST", "/pieces", true);
    for (const std::string text : {"[a]", "[a][b]"}) {  // each is answered before the next one is sent
        client.frame(0, 0, 1, text.substr(text.size() - 2, 1));
        EXPECT_EQ(body_of(1, text), text);
    }
    EXPECT_FALSE(client.answers[1].ended);
    client.frame(0, end_stream, 1, "c");
    EXPECT_EQ(client.await(1).body, "[a][b][c]");
    client.ask(3, "POST", "/pieces");
    EXPECT_EQ(client.await(3).body, "");
    client.ask(5, "POST", "/pieces", true);
    client.frame(0, 0, 5, "!");
    EXPECT_EQ(client.await(5).body, "[!]") << "the answer's end comes before that of the body";
    client.ask(7, "POST", "/pieces", true);
    client.frame(0, 0, 7, "x");
    body_of(7, "[x]");
    client.frame(0, 0, 7, std::string(4000, 'x'));
    EXPECT_GT(client.await(7).reset, 0);
    client.ask(9, "POST", "/pieces", true);
    client.frame(0, 0, 9, "d");
    body_of(9, "[d]");
    client.frame(3, 0, 9, Client2::number(8));
    EXPECT_TRUE(service.left(2)) << "of the streams 7 and 9";
}

TEST(Http2, ClosesOnRapidResets) {
    Service service;
    Client2 client(service.server.port());
    std::string piece;
    for (uint32_t i = 0; i < 5000; ++i)
        piece += Client2::bytes_of(1, end_headers | end_stream, 2 * i + 1, Client2::fields("GET", "/wait")) +
                 Client2::bytes_of(3, 0, 2 * i + 1, Client2::number(8));
    EXPECT_TRUE(closed_while_sending(client, piece, 1));
    EXPECT_LT(service.handled(), 2000);
}

TEST(Http2, ClosesOnEndlessContinuations) {
    Service service;
    Client2 client(service.server.port());
    client.frame(1, 0, 1, Client2::fields("GET", "/echo"));
    const std::string field = Client2::literal("a", std::string(10'000, 'x'));
    EXPECT_TRUE(closed_while_sending(client, Client2::bytes_of(9, 0, 1, field), 10'000));
    EXPECT_EQ(service.handled(), 0);
}

TEST(Http2, ClosesOnStreamsThatItMustReset) {
    Service service;
    Client2 client(service.server.port());
    for (uint32_t stream = 1; stream < 20'000; stream += 2) {  // a window above 2^31
        std::string piece = Client2::bytes_of(1, end_headers, stream, Client2::fields("POST", "/echo"));
        piece += Client2::bytes_of(8, 0, stream, Client2::number(0x7fffffff));
        if (!client.send(piece)) break;
    }
    client.rest();  // throws where the server keeps the connection
}

TEST(Http2, ClosesOnFloodsOfPings) {
    Service service;
    Client2 client(service.server.port());  // reads nothing: the answers stay with the server
    std::string piece;
    for (int i = 0; i < 1000; ++i) piece += Client2::bytes_of(6, 0, 0, "12345678");
    EXPECT_TRUE(closed_while_sending(client, piece, 10'000));
}

TEST(Http2, AnswersAnHpackBombWith431) {
    Service service;
    Client2 client(service.server.port());
    // One field of 4,000 bytes enters the table; a byte each names it again: 16,000 times 4,000 bytes.
    std::string block = Client2::fields("GET", "/echo");
    std::string field = Client2::literal("a", std::string(3900, 'x'));
    field[0] = 0x40;  // with an index
    client.frame(1, end_stream, 1, block + field);
    client.frame(9, end_headers, 1, std::string(16'000, '\xbe'));
    EXPECT_EQ(client.await(1).headers[":status"], "431");
    EXPECT_EQ(service.handled(), 0);
}

TEST(Http2, RefusesStreamsAboveTheLimit) {
    ServerOptions options;
    options.streams = 2;
    Service service(options);
    Client2 client(service.server.port());
    client.next();  // SETTINGS, which is acknowledged: from here on the limit counts
    for (const uint32_t stream : {1U, 3U, 5U}) client.ask(stream, "GET", "/wait");
    EXPECT_THROW(client.await(5), std::runtime_error);  // it had the limit, so nghttp2 ends the connection
    EXPECT_TRUE(client.went_away);
    EXPECT_EQ(service.handled(), 2);
    EXPECT_TRUE(service.left(2));
    service.waiting()->end();
    service.waiting()->end();
}

TEST(Http2, DrainsWithGoAway) {
    Service service;
    Client2 client(service.server.port());
    client.ask(1, "GET", "/wait");
    const auto response = service.waiting();
    service.server.drain();
    while (!client.went_away) ASSERT_GE(client.next().type, 0);
    client.ask(3, "GET", "/echo");
    response->write("last");
    response->end();
    EXPECT_EQ(client.await(1).body, "last");
    client.rest();
    service.server.stop(std::chrono::steady_clock::now() + std::chrono::seconds(20));
    EXPECT_EQ(service.handled(), 1);
}

TEST(Http2, EndsIdleConnectionsAndSlowRequests) {
    ServerOptions options;
    options.header_time = options.body_time = std::chrono::milliseconds(30);
    options.idle_time = std::chrono::milliseconds(100);
    Service service(options);
    Client2 client(service.server.port());
    client.ask(1, "POST", "/echo", true);
    EXPECT_EQ(client.await(1).headers[":status"], "408");
    client.rest();
    Client half(service.server.port());
    half.send("PRI * HTTP/2.0\r\n");
    EXPECT_EQ(half.rest(), "");
}

}  // namespace
}  // namespace unsloth::http
