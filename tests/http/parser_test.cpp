#include "http/request_parser.h"

#include <gtest/gtest.h>

#include <string>

namespace unsloth::http {
namespace {

struct Parsed {
    int status = 0;
    bool done = false, keeps_alive = false;
    Request request;
    size_t used = 0;
};

Parsed parse(std::string_view bytes, size_t step = std::string_view::npos, size_t header = 4096, size_t body = 64) {
    RequestParser parser(header, body);
    Parsed parsed;
    for (size_t at = 0; at < bytes.size() && !parser.done() && !parser.refused();) {
        const auto piece = bytes.substr(at, step);
        const size_t used = parser.feed(piece);
        at += used;
        parsed.used = at;
        if (used < piece.size()) break;
    }
    parsed.status = parser.refusal().status;
    parsed.done = parser.done();
    parsed.keeps_alive = parser.keeps_alive();
    parsed.request = parser.take();
    return parsed;
}

std::string get(const std::string& fields) {
    return "GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}

TEST(RequestParser, ReadsARequestSplitAnywhere) {
    const std::string bytes =
        "\r\nPOST /v1/models/a%2Fb%20c?x=1%20&y HTTP/1.1\r\nHost: a:80\r\nX-Id:\t 7 \r\nContent-Length: 5\r\n\r\nhello";
    for (size_t step = 1; step <= bytes.size(); ++step) {
        const Parsed parsed = parse(bytes + "GET /next", step);
        ASSERT_TRUE(parsed.done) << step;
        EXPECT_EQ(parsed.used, bytes.size());
        EXPECT_TRUE(parsed.keeps_alive);
        EXPECT_EQ(parsed.request.method, "POST");
        EXPECT_EQ(parsed.request.path, "/v1/models/a/b c");
        EXPECT_EQ(parsed.request.query, "x=1%20&y");
        EXPECT_EQ(parsed.request.body, "hello");
        EXPECT_EQ(parsed.request.headers, (Headers{{"host", "a:80"}, {"x-id", "7"}, {"content-length", "5"}}));
    }
}

TEST(RequestParser, ReadsChunksSplitAnywhere) {
    const std::string bytes =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
        "Chunked\r\n\r\n4;q=\"1\"\r\nab\r\n\r\n0A\r\n0123456789\r\n0\r\nT: x\r\n\r\n";
    for (size_t step = 1; step <= bytes.size(); ++step) {
        const Parsed parsed = parse(bytes + "G", step);
        ASSERT_TRUE(parsed.done) << step;
        EXPECT_EQ(parsed.used, bytes.size());
        EXPECT_EQ(parsed.request.body, "ab\r\n0123456789");
    }
}

TEST(RequestParser, KnowsWhetherTheConnectionStays) {
    EXPECT_TRUE(parse(get("")).keeps_alive);
    EXPECT_FALSE(parse(get("Connection: x, Close\r\n")).keeps_alive);
    EXPECT_FALSE(parse("GET / HTTP/1.0\r\n\r\n").keeps_alive);
    EXPECT_TRUE(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keeps_alive);
    EXPECT_EQ(parse("GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n").request.path, "/b");
    EXPECT_EQ(parse("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").request.path, "*");
}

TEST(RequestParser, RefusesWhatTwoReadersMayReadInTwoWays) {
    const std::pair<std::string, int> cases[] = {
        {"GET / HTTP/1.1\nHost: a\n\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\n\r\n", 400},
        {get("X: a\rb\r\n"), 400},
        {get("X: a\r\r\n"), 400},
        {get("X: a\r\n b\r\n"), 400},
        {get("X : a\r\n"), 400},
        {get(" X: a\r\n"), 400},
        {get(": a\r\n"), 400},
        {get("X\r\n"), 400},
        {get(std::string("X: a\0b\r\n", 8)), 400},
        {get("Host: b\r\n"), 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
        {get("Content-Length: 1\r\nContent-Length: 1\r\n"), 400},
        {get("Content-Length: 1, 1\r\n"), 400},
        {get("Content-Length: +1\r\n"), 400},
        {get("Content-Length: 0x1\r\n"), 400},
        {get("Content-Length:\r\n"), 400},
        {get("Content-Length: 99999999999999999999\r\n"), 400},
        {get("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400},
        {get("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"), 400},
        {get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400},
        {get("Transfer-Encoding: gzip, chunked\r\n"), 501},
        {get("Transfer-Encoding: xchunked\r\n"), 501},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "0x1\r\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "1 \r\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "\r\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "ffffffffffffffffff\r\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "1\r\nab\r\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "1\r\na\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "1\n", 400},
        {get("Transfer-Encoding: chunked\r\n") + "0\r\nX : a\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET / http/1.1\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\n\r\n", 505},
        {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501},
        {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {get("Expect: 200\r\n"), 417},
        {get("Content-Length: 65\r\n"), 413},
        {get("Transfer-Encoding: chunked\r\n") + "41\r\n", 413},
        {get("X: " + std::string(5000, 'a') + "\r\n"), 431},
        {"GET /" + std::string(5000, 'a'), 431},
    };
    for (const auto& [bytes, status] : cases) {
        EXPECT_EQ(parse(bytes).status, status) << bytes.substr(0, 100);
        EXPECT_EQ(parse(bytes, 1).status, status) << bytes.substr(0, 100);
        EXPECT_FALSE(parse(bytes).done) << bytes.substr(0, 100);
    }
    std::string many;
    for (int i = 0; i < 300; ++i) many += "a:\r\n";
    EXPECT_EQ(parse(get(many)).status, 431);
}

TEST(RequestParser, TakesLongBodiesOfSmallChunksButNoEndlessExtensions) {
    std::string bytes = get("Transfer-Encoding: chunked\r\n");
    for (int i = 0; i < 2000; ++i) bytes += "8\r\n01234567\r\n";
    EXPECT_TRUE(parse(bytes + "0\r\n\r\n", std::string_view::npos, 4096, 16000).done);
    EXPECT_EQ(parse(get("Transfer-Encoding: chunked\r\n") + "1;" + std::string(5000, 'a')).status, 431);
}

}  // namespace
}  // namespace unsloth::http
