#pragma once
// One HTTP/2 connection.
#include <nghttp2/nghttp2.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "http/protocol.h"
#include "http/request_parser.h"

namespace unsloth::http {

constexpr uint32_t stream_window = 1 << 20;
constexpr int32_t connection_window = 4 << 20;
constexpr size_t most_fields_h2 = 256;
/// Streams that one client makes the connection reset, by its own RST_STREAM or by an error: at once, and a second
/// after that.
constexpr uint64_t reset_burst = 1000, resets_per_second = 33;

struct Stream {
    explicit Stream(Shared& shared) : held(shared) {}
    Request request;
    HeldBytes held;
    size_t header_bytes = 0;
    bool method_seen = false, complete = false;  // complete: the handler may have it
    bool in_pieces = false, body_ends = false;
    size_t body_bytes = 0;
    std::string piece;  // of the body, for the exchange
    Refusal refusal;
    std::shared_ptr<Exchange> exchange;
    Clock::time_point progress = Clock::now();  // began, or last sent a piece
};

class Http2 : public Protocol {
  public:
    Http2(Shared& shared, Carrier& carrier, std::string peer);
    ~Http2() override;
    Http2(const Http2&) = delete;
    Http2& operator=(const Http2&) = delete;

    size_t receive(std::string_view bytes) override;
    void fill(std::string& out) override;
    void changed(Exchange& exchange) override;
    void drain() override { go_away(); }
    void client_left() override { failed_ = true; }
    void close() override;
    void check_time(Clock::time_point now) override;
    bool finished() const override {
        return failed_ || (::nghttp2_session_want_read(session_) == 0 && ::nghttp2_session_want_write(session_) == 0);
    }
    bool aborted() const override { return failed_; }

  private:
    // nghttp2's callbacks. What they throw fails the connection.
    int begin_headers(const nghttp2_frame& frame);
    int header(const nghttp2_frame& frame, std::string_view name, std::string_view value);
    int data(int32_t id, std::string_view bytes);
    int frame_received(const nghttp2_frame& frame);
    int frame_sent(const nghttp2_frame& frame);
    int stream_closed(int32_t id);
    ssize_t read(int32_t id, uint8_t* buffer, size_t size, uint32_t* flags);

    static nghttp2_session_callbacks* callbacks();
    template <class Call>
    static int guarded(void* user, const Call& call);

    Stream* find(int32_t id);
    void refuse(Stream& stream, int32_t id, int status, const char* message);
    void settle();
    void submit(Exchange& exchange, Head head);
    void hand_over(Stream& stream, int32_t id);
    void drop(Stream& stream, int32_t id);
    void go_away();
    void count_client_error();

    Shared& shared_;
    Carrier& carrier_;
    const std::string peer_;
    nghttp2_session* session_ = nullptr;
    std::unordered_map<int32_t, Stream> streams_;
    std::vector<int32_t> ready_;                   // requests that are complete or refused
    std::vector<std::shared_ptr<Exchange>> left_;  // of closed streams
    Clock::time_point idle_since_ = Clock::now();
    double client_errors_left_ = reset_burst;
    Clock::time_point last_client_error_ = idle_since_;
    bool failed_ = false, leaving_ = false;
};

}  // namespace unsloth::http
