#include <gtest/gtest.h>

#include <filesystem>

#include "http/client.h"
#include "http/service.h"

namespace unsloth::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string get_of(const std::string& path, const std::string& fields = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}
std::string post(const std::string& path, const std::string& body) {
    return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
}
std::string status_of(const std::string& head) {
    return head.substr(0, head.find(' ') + 4);
}
size_t threads_of_process() {
    using Iterator = std::filesystem::directory_iterator;
    return static_cast<size_t>(std::distance(Iterator("/proc/self/task"), Iterator()));
}

TEST(Http1, AnswersManyRequestsOfOneConnection) {
    Service service;
    Client client(service.server.port());
    for (int i = 0; i < 50; ++i) {
        client.send(post("/echo?n=" + std::to_string(i), std::string(static_cast<size_t>(i) * 1000, 'x')));
        const auto [head, body] = client.answer();
        EXPECT_EQ(status_of(head), "HTTP/1.1 200");
        EXPECT_EQ(body, "POST n=" + std::to_string(i) + ' ' + std::string(static_cast<size_t>(i) * 1000, 'x'));
    }
}

TEST(Http1, AnswersPipelinedRequestsInOrder) {
    Service service;
    Client client(service.server.port());
    std::string all;
    for (int i = 0; i < 500; ++i) all += i % 5 == 0 ? get_of("/stream") : get_of("/echo?" + std::to_string(i));
    client.send(all);
    for (int i = 0; i < 500; ++i) {
        const auto [head, body] = client.answer();
        ASSERT_EQ(body, i % 5 == 0 ? "aaabbbcccdddeee" : "GET " + std::to_string(i) + ' ') << i;
    }
}

TEST(Http1, AnswersHeadWithoutABody) {
    Service service;
    Client client(service.server.port());
    client.send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n" + get_of("/echo"));
    EXPECT_NE(client.answer(true).first.find("content-length: 6\r\n"), std::string::npos);
    EXPECT_EQ(status_of(client.answer(true).first), "HTTP/1.1 200");
    EXPECT_EQ(client.answer().second, "GET  ");
}

TEST(Http1, StreamsInChunksWithTrailersOrUntilTheCloseForHttp10) {
    Service service;
    Client client(service.server.port());
    client.send(get_of("/stream", "Connection: close\r\n"));
    const std::string all = client.rest();
    EXPECT_NE(all.find("transfer-encoding: chunked\r\nconnection: close\r\n"), std::string::npos);
    EXPECT_TRUE(all.ends_with("\r\n0\r\ngrpc-status: 0\r\n\r\n")) << all;
    Client old(service.server.port());
    old.send("GET /stream HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(old.rest().ends_with("\r\n\r\naaabbbcccdddeee"));
}

TEST(Http1, AsksForABodyThatWaits) {
    Service service;
    Client client(service.server.port());
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hi");
    EXPECT_EQ(client.answer().second, "POST  hi");
}

TEST(Http1, RefusesAndClosesBeforeAnotherRequestIsRead) {
    Service service;
    for (const std::string bytes :
         {"GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
          "GET /echo HTTP/1.1\nHost: a\n\n", "\x16\x03\x01\x02\r\n", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"}) {
        Client client(service.server.port());
        client.send(bytes + get_of("/echo"));
        const std::string all = client.rest();
        EXPECT_TRUE(all.starts_with("HTTP/1.1 ") && all[9] != '2') << all;
        EXPECT_NE(all.find("connection: close"), std::string::npos);
        EXPECT_NE(all.find(R"("type":)"), std::string::npos);
    }
    EXPECT_EQ(service.handled(), 0);
}

TEST(Http1, RefusesWhatIsTooLarge) {
    ServerOptions options;
    options.header_bytes = 2000;
    options.body_bytes = 3000;
    Service service(options);
    Client header(service.server.port());
    header.send(get_of("/echo", "X: " + std::string(3000, 'x') + "\r\n"));
    EXPECT_EQ(status_of(header.rest()), "HTTP/1.1 431");
    Client body(service.server.port());
    body.send(post("/echo", std::string(500'000, 'x')));
    EXPECT_EQ(status_of(body.rest()), "HTTP/1.1 413");
    Client chunks(service.server.port());
    chunks.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') +
                "\r\n7d0\r\n" + std::string(2000, 'x'));
    EXPECT_EQ(status_of(chunks.rest()), "HTTP/1.1 413");
    EXPECT_EQ(service.handled(), 0);
}

TEST(Http1, AnswersFailuresOfTheServiceAndForgottenResponses) {
    Service service;
    Client client(service.server.port());
    for (const char* path : {"/throw", "/drop"}) {
        client.send(get_of(path));
        const auto [head, body] = client.answer();
        EXPECT_EQ(status_of(head), "HTTP/1.1 500");
        EXPECT_NE(body.find("server_error"), std::string::npos);
    }
    client.send(get_of("/wait"));
    auto response = service.waiting();
    response->write("part");
    response.reset();  // forgotten after it began: the client must see that it is not whole
    EXPECT_FALSE(client.rest().ends_with("0\r\n\r\n"));
}

TEST(Http1, EndsSlowHeadersBodiesAndIdleConnections) {
    ServerOptions options;
    options.header_time = options.body_time = milliseconds(60);
    options.idle_time = milliseconds(100);
    Service service(options);
    Client header(service.server.port()), body(service.server.port()), idle(service.server.port());
    Client silent(service.server.port());
    header.send("GET / HTTP/1.1\r\nHos");
    body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    idle.send(get_of("/echo"));
    EXPECT_EQ(status_of(header.rest()), "HTTP/1.1 408");
    EXPECT_EQ(status_of(body.rest()), "HTTP/1.1 408");
    EXPECT_TRUE(idle.rest().ends_with("GET  "));
    EXPECT_EQ(silent.rest(), "");
}

TEST(Http1, TellsOfClientsThatLeave) {
    Service service;
    Client client(service.server.port()), half(service.server.port());
    client.send(get_of("/wait"));
    const auto response = service.waiting();
    EXPECT_TRUE(response->write("x"));
    client.leave();
    EXPECT_TRUE(service.left(1));
    EXPECT_FALSE(response->write("y"));
    int late = 0;
    response->on_gone([&] { ++late; });
    EXPECT_EQ(late, 1);
    half.send(get_of("/wait"));
    const auto second = service.waiting();
    half.half_close();
    EXPECT_TRUE(service.left(2));
    response->end();
    second->end();
}

TEST(Http1, DropsAClientThatDoesNotRead) {
    ServerOptions options;
    options.buffered_bytes = 100'000;
    Service service(options);
    Client client(service.server.port());
    client.send(get_of("/wait"));
    const auto response = service.waiting();
    const std::string piece(50'000, 'x');
    size_t sent = 0;
    while (response->write(piece)) ASSERT_LT(sent += piece.size(), size_t{1} << 30);
    EXPECT_TRUE(service.left(1));
    response->end();
}

TEST(Http1, KeepsAThousandStreamsWithoutThreads) {
    Service service;
    std::vector<Client> clients;
    std::vector<std::shared_ptr<Response>> responses;
    const size_t before = threads_of_process();
    for (int i = 0; i < 400; ++i) clients.emplace_back(service.server.port());
    for (auto& client : clients) client.send(get_of("/wait"));
    for (size_t i = 0; i < clients.size(); ++i) responses.push_back(service.waiting());
    Client2 multiplexed(service.server.port());
    for (uint32_t i = 0; i < 600; ++i) multiplexed.ask(2 * i + 1, "GET", "/wait");
    for (int i = 0; i < 600; ++i) responses.push_back(service.waiting());
    EXPECT_EQ(threads_of_process(), before);
    for (auto& response : responses) {
        EXPECT_TRUE(response->write("tick"));
        response->end();
    }
    for (auto& client : clients) EXPECT_EQ(client.answer().second, "tick");
    for (uint32_t i = 0; i < 600; ++i) EXPECT_EQ(multiplexed.await(2 * i + 1).body, "tick");
}

TEST(Http1, RefusesConnectionsAboveTheLimit) {
    ServerOptions options;
    options.connections = 1;
    Service service(options);
    Client first(service.server.port());
    first.send(get_of("/echo"));
    EXPECT_EQ(status_of(first.answer().first), "HTTP/1.1 200");
    Client second(service.server.port());
    EXPECT_EQ(status_of(second.rest()), "HTTP/1.1 503");
}

TEST(Http1, DrainsAndStops) {
    Service service;
    Client running(service.server.port()), idle(service.server.port());
    running.send(get_of("/wait"));
    const auto response = service.waiting();
    idle.send(get_of("/echo"));
    idle.answer();
    running.send(get_of("/echo"));  // waits behind the stream
    service.server.drain();
    EXPECT_EQ(idle.rest(), "");
    EXPECT_THROW(Client(service.server.port()), std::runtime_error);
    EXPECT_TRUE(response->write("last"));
    response->end();
    EXPECT_TRUE(running.rest().ends_with("4\r\nlast\r\n0\r\n\r\n"));
    service.server.stop(steady_clock::now() + std::chrono::seconds(20));
    EXPECT_TRUE(service.left(0));
}

TEST(Http1, StopEndsWhatRunsAtItsDeadline) {
    Service service;
    Client running(service.server.port());
    running.send(get_of("/wait"));
    const auto response = service.waiting();
    service.server.stop(steady_clock::now() + milliseconds(50));
    EXPECT_TRUE(service.left(1));
    EXPECT_FALSE(response->write("x"));
    response->end();
    EXPECT_FALSE(running.rest().ends_with("0\r\n\r\n"));
}

}  // namespace
}  // namespace unsloth::http
