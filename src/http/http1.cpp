// HTTP/1.1 on one connection: one exchange at a time, further requests wait in the connection's buffer.
#include <array>
#include <charconv>
#include <optional>

#include "http/protocol.h"
#include "http/request_parser.h"
#include "unsloth/core/error.h"

namespace unsloth::http {
namespace {

const char* reason_of(int status) {
    static constexpr std::array<std::pair<int, const char*>, 24> reasons{{
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    }};
    for (const auto& [code, reason] : reasons)
        if (code == status) return reason;
    return "";
}

class Http1 : public Protocol {
  public:
    Http1(Shared& shared, Carrier& carrier, std::string peer)
        : shared_(shared), carrier_(carrier), peer_(std::move(peer)), held_(shared) {
        next_request();
    }
    ~Http1() override { close(); }

    size_t receive(std::string_view bytes) override;
    void fill(std::string& out) override;
    void changed(Exchange&) override {}  // `fill`, which follows, looks for itself
    void drain() override { closing_ = closing_ || (!current_ && !parser_->started()); }
    void client_left() override;
    void close() override;
    void check_time(Clock::time_point now) override;
    bool finished() const override { return !current_ && own_.empty() && (closing_ || left_); }
    bool aborted() const override { return aborted_; }

  private:
    void next_request();
    void refuse(int status, std::string_view message);
    void write_head(std::string& out, Head head);
    void write_piece(std::string& out, std::string_view piece) const;
    void finish(std::string& out);

    Shared& shared_;
    Carrier& carrier_;
    const std::string peer_;
    std::optional<RequestParser> parser_;
    HeldBytes held_;
    size_t arrived_ = 0;  // bytes of the request
    std::shared_ptr<Exchange> current_;
    std::string own_;          // what the server says itself: 100 Continue
    Clock::time_point since_;  // the connection is idle, or the request or its body began
    bool head_seen_ = false, started_ = false;
    bool head_sent_ = false, chunked_ = false;
    bool keep_ = true, closing_ = false, left_ = false, aborted_ = false;
};

void Http1::next_request() {
    parser_.emplace(shared_.options.header_bytes, shared_.options.body_bytes);
    since_ = Clock::now();
    arrived_ = 0;
    head_seen_ = started_ = false;
}

size_t Http1::receive(std::string_view bytes) {
    size_t used = 0;
    while (used < bytes.size() && !current_ && !closing_) {
        const size_t taken = parser_->feed(bytes.substr(used));
        used += taken;
        arrived_ += taken;
        if (!started_ && parser_->started()) {
            started_ = true;
            since_ = Clock::now();
        }
        if (parser_->refused()) {
            refuse(parser_->refusal().status, parser_->refusal().message);
            break;
        }
        if (!parser_->done() && !held_.set(arrived_)) {
            refuse(503, too_much_held);
            break;
        }
        if (!head_seen_ && parser_->head_done()) {
            head_seen_ = true;
            since_ = Clock::now();
            if (parser_->expects_continue()) own_ += "HTTP/1.1 100 Continue\r\n\r\n";
        }
        if (!parser_->done()) continue;
        keep_ = parser_->keeps_alive();
        head_sent_ = false;
        held_.set(0);
        Request request = parser_->take();
        request.peer = peer_;
        current_ = start_exchange(shared_, carrier_, 0, std::move(request));
        if (left_) client_left();
    }
    return closing_ ? bytes.size() : used;
}

void Http1::refuse(int status, std::string_view message) {
    keep_ = false;
    head_sent_ = false;
    closing_ = true;  // takes no more bytes; the answer is still sent
    held_.set(0);
    current_ = refuse_exchange(shared_, carrier_, 0, parser_->is_head(), status, message);
    parser_->take();  // and forgotten
}

void Http1::fill(std::string& out) {
    out += own_;
    own_.clear();
    while (current_ && out.size() < high_water) {
        if (current_->broken()) {
            close();
            aborted_ = true;
            return;
        }
        if (!head_sent_) {
            auto head = current_->take_head();
            if (!head) return;
            write_head(out, std::move(*head));
            head_sent_ = true;
        }
        std::string piece;
        const bool end = current_->read(piece, high_water);
        write_piece(out, piece);
        if (end)
            finish(out);
        else if (piece.empty())
            return;
    }
}

void Http1::write_head(std::string& out, Head head) {
    const bool http_1_0 = parser_->version_1_0();
    const bool bodiless = current_->head_only() || head.status == 204 || head.status == 304;
    for (const auto& [name, value] : head.headers)
        if (name == "connection" && value == "close") keep_ = false;
    chunked_ = !bodiless && !head.length && !http_1_0;
    if ((!bodiless && !head.length && http_1_0) || shared_.draining) keep_ = false;
    out += cat("HTTP/1.1 ", head.status, ' ', reason_of(head.status), "\r\ndate: ", date_now(), "\r\n");
    for (const auto& [name, value] : head.headers)
        if (!is_connection_field(name)) out.append(name).append(": ").append(value).append("\r\n");
    if (head.length && head.status != 204 && head.status != 304) out += cat("content-length: ", *head.length, "\r\n");
    if (chunked_) out += "transfer-encoding: chunked\r\n";
    if (!keep_)
        out += "connection: close\r\n";
    else if (http_1_0)
        out += "connection: keep-alive\r\n";
    out += "\r\n";
}

void Http1::write_piece(std::string& out, std::string_view piece) const {
    if (piece.empty()) return;
    if (!chunked_) {
        out += piece;
        return;
    }
    std::array<char, 20> size{};
    const auto end = std::to_chars(size.data(), size.data() + size.size(), piece.size(), 16).ptr;
    out.append(size.data(), end).append("\r\n").append(piece).append("\r\n");
}

void Http1::finish(std::string& out) {
    if (chunked_) {
        out += "0\r\n";
        for (const auto& [name, value] : current_->take_trailers())
            out.append(name).append(": ").append(value).append("\r\n");
        out += "\r\n";
    }
    current_->detach();
    current_.reset();
    if (!keep_ || shared_.draining) closing_ = true;
    if (!closing_) next_request();
}

void Http1::client_left() {
    left_ = true;
    if (current_ && !current_->ended()) close();
}

void Http1::close() {
    closing_ = true;
    held_.set(0);
    if (const auto exchange = std::exchange(current_, nullptr)) exchange->leave();
}

void Http1::check_time(Clock::time_point now) {
    if (current_ || closing_) return;
    const auto& options = shared_.options;
    if (!started_)
        closing_ = now - since_ > options.idle_time;
    else if (!head_seen_ && now - since_ > options.header_time)
        refuse(408, "the header took too long to arrive");
    else if (head_seen_ && now - since_ > options.body_time)
        refuse(408, "the body took too long to arrive");
}

}  // namespace

std::unique_ptr<Protocol> make_http1(Shared& shared, Carrier& carrier, std::string peer) {
    return std::make_unique<Http1>(shared, carrier, std::move(peer));
}

}  // namespace unsloth::http
