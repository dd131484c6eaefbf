// A client for the server's tests: a socket with a deadline, HTTP/1.1 answers, HTTP/2 frames by hand.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unsloth::http {

constexpr int patience_ms = 20'000;  // for what is expected to happen

class Client {
  public:
    explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
            throw std::runtime_error("no connection");
        const int yes = 1;
        ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }
    ~Client() { leave(); }
    Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)) {}
    Client(const Client&) = delete;

    /// False when the server has closed.
    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (count <= 0) return false;
            bytes.remove_prefix(static_cast<size_t>(count));
        }
        return true;
    }
    /// Sends what the socket takes at once.
    bool send_some(std::string_view bytes) {
        return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN;
    }
    void leave() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }
    void half_close() { ::shutdown(fd_, SHUT_WR); }

    /// Exactly so many bytes; fewer where the connection ended.
    std::string take(size_t count) {
        while (in_.size() < count && more()) {
        }
        std::string out = in_.substr(0, count);
        in_.erase(0, out.size());
        return out;
    }
    /// Up to and with `end`; all that came where the connection ended.
    std::string until(std::string_view end) {
        size_t at = 0;
        while ((at = in_.find(end)) == std::string::npos && more()) {
        }
        return take(at == std::string::npos ? in_.size() : at + end.size());
    }
    /// All until the server closes.
    std::string rest() {
        while (more()) {
        }
        return std::exchange(in_, {});
    }
    /// One HTTP/1.1 answer: head and body. By length or in chunks.
    std::pair<std::string, std::string> answer(bool head_only = false) {
        std::string head = until("\r\n\r\n"), body;
        if (head_only) return {head, body};
        if (const auto at = head.find("content-length: "); at != std::string::npos) {
            body = take(std::stoul(head.substr(at + 16)));
        } else if (head.find("transfer-encoding: chunked") != std::string::npos) {
            for (;;) {
                const std::string line = until("\r\n");
                const size_t size = line.empty() ? 0 : std::stoul(line, nullptr, 16);
                if (size == 0) break;
                body += take(size);
                take(2);
            }
            while (until("\r\n").size() > 2) {
            }
        }
        return {head, body};
    }

  private:
    bool more() {
        pollfd waiting{fd_, POLLIN, 0};
        if (::poll(&waiting, 1, patience_ms) <= 0) throw std::runtime_error("the server says nothing");
        char piece[16384];
        const ssize_t count = ::recv(fd_, piece, sizeof piece, 0);
        if (count > 0) in_.append(piece, static_cast<size_t>(count));
        return count > 0;
    }
    int fd_;
    std::string in_;
};

struct Frame {
    int type = -1, flags = 0;  ///< type -1: the connection ended
    uint32_t stream = 0;
    std::string payload;
};

/// What came of one stream.
struct StreamAnswer {
    std::map<std::string, std::string> headers, trailers;
    std::string body;
    bool ended = false, headers_seen = false;
    int reset = -1;  ///< RST_STREAM's code
};

/// HTTP/2 by prior knowledge.
class Client2 : public Client {
  public:
    explicit Client2(int port) : Client(port) {
        ::nghttp2_hd_inflate_new(&inflater_);
        send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frame(4, 0, 0, "");
    }
    ~Client2() { ::nghttp2_hd_inflate_del(inflater_); }

    bool frame(int type, int flags, uint32_t stream, std::string_view payload) {
        return send(bytes_of(type, flags, stream, payload));
    }
    static std::string number(uint32_t value) {
        const char bytes[] = {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                              static_cast<char>(value >> 8), static_cast<char>(value)};
        return {bytes, 4};
    }
    static std::string bytes_of(int type, int flags, uint32_t stream, std::string_view payload) {
        std::string out = number(static_cast<uint32_t>(payload.size())).substr(1);
        out += static_cast<char>(type);
        out += static_cast<char>(flags);
        return out + number(stream) + std::string(payload);
    }
    /// A field as a literal without an index.
    static std::string literal(std::string_view name, std::string_view value) {
        std::string out(1, '\0');
        for (const auto text : {name, value}) {
            if (text.size() < 127) {
                out += static_cast<char>(text.size());
            } else {
                out += '\x7f';
                size_t left = text.size() - 127;
                for (; left >= 128; left /= 128) out += static_cast<char>(left % 128 + 128);
                out += static_cast<char>(left);
            }
            out += text;
        }
        return out;
    }
    static std::string fields(std::string_view method, std::string_view path) {
        return literal(":method", method) + literal(":scheme", "http") + literal(":authority", "a") +
               literal(":path", path);
    }
    /// HEADERS with END_HEADERS and, without a body to come, END_STREAM.
    bool ask(uint32_t stream, std::string_view method, std::string_view path, bool body_follows = false) {
        return frame(1, body_follows ? 4 : 5, stream, fields(method, path));
    }
    Frame next() {
        const std::string head = take(9);
        if (head.size() < 9) return {};
        const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(head[i])); };
        Frame frame{static_cast<int>(byte(3)), static_cast<int>(byte(4)),
                    byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8),
                    take(byte(0) << 16 | byte(1) << 8 | byte(2))};
        note(frame);
        return frame;
    }
    /// Reads frames until that stream has ended or was reset; the connection's end throws.
    StreamAnswer& await(uint32_t stream) {
        while (!answers[stream].ended && answers[stream].reset < 0)
            if (next().type < 0) throw std::runtime_error("the server closed the connection");
        return answers[stream];
    }
    std::map<uint32_t, StreamAnswer> answers;
    bool went_away = false;

  private:
    void note(const Frame& frame) {
        StreamAnswer& answer = answers[frame.stream];
        if (frame.type == 0) {
            answer.body += frame.payload;
            if (!frame.payload.empty()) {
                const std::string grown = number(static_cast<uint32_t>(frame.payload.size()));
                if (read_stream_data) send(bytes_of(8, 0, 0, grown) + bytes_of(8, 0, frame.stream, grown));
            }
        } else if (frame.type == 1) {
            auto& fields = answer.headers_seen ? answer.trailers : answer.headers;
            answer.headers_seen = true;
            inflate(frame.payload, fields);
        } else if (frame.type == 3) {
            answer.reset = frame.payload.back();
        } else if (frame.type == 4 && (frame.flags & 1) == 0) {
            send(bytes_of(4, 1, 0, ""));
        } else if (frame.type == 7) {
            went_away = true;
        }
        if (frame.type <= 1 && (frame.flags & 1) != 0) answer.ended = true;
    }
    void inflate(std::string_view block, std::map<std::string, std::string>& fields) {
        const auto* at = reinterpret_cast<const uint8_t*>(block.data());
        size_t left = block.size();
        for (;;) {
            nghttp2_nv field{};
            int flags = 0;
            const auto used = ::nghttp2_hd_inflate_hd2(inflater_, &field, &flags, at, left, 1);
            if (used < 0) throw std::runtime_error("HPACK");
            at += used;
            left -= static_cast<size_t>(used);
            if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0)
                fields[{reinterpret_cast<char*>(field.name), field.namelen}] =
                    std::string(reinterpret_cast<char*>(field.value), field.valuelen);
            if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) break;
        }
        ::nghttp2_hd_inflate_end_headers(inflater_);
    }
    nghttp2_hd_inflater* inflater_ = nullptr;

  public:
    bool read_stream_data = true;  ///< gives the window back
};

}  // namespace unsloth::http
