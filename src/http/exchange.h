// One request's answer: what other threads have said so far, and what the server has sent of it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/http/server.h"

namespace unsloth::http {

class Exchange;

/// What other threads leave for the server's thread, which waits at an eventfd.
class Mailbox {
  public:
    Mailbox();
    ~Mailbox();
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;
    int fd() const { return fd_; }
    /// An exchange whose answer has grown, or nullptr just to wake.
    void post(std::shared_ptr<Exchange> exchange);
    /// The exchanges since the last call.
    std::vector<std::shared_ptr<Exchange>> take();
    /// The server has stopped: what is left here or comes later goes. (Exchanges hold the mailbox.)
    void close();

  private:
    std::mutex mutex_;
    bool closed_ = false;
    std::vector<std::shared_ptr<Exchange>> changed_;
    bool signalled_ = false;
    int fd_;
};

/// The side that carries exchanges: a connection. Used on the server's thread alone.
class Carrier {
  public:
    virtual ~Carrier() = default;
    /// The exchange of that stream has more to send, has ended or is broken.
    virtual void changed(Exchange& exchange) = 0;
};

struct Head {
    int status = 0;
    Headers headers;
    std::optional<size_t> length;  ///< of a whole answer
};

/// Shared by the caller's Response and the connection. Methods lock; no lock is held where a function is called.
class Exchange : public std::enable_shared_from_this<Exchange> {
  public:
    Exchange(std::shared_ptr<Mailbox> mailbox, Carrier* carrier, int stream, bool head_only, size_t limit)
        : mailbox_(std::move(mailbox)), carrier_(carrier), stream_(stream), head_only_(head_only), limit_(limit) {}

    // The caller's side: any thread.
    void send(int status, Headers headers, std::string body, Headers trailers = {});
    void begin(int status, Headers headers);
    bool write(std::string_view piece);
    void end(Headers trailers);
    void on_gone(std::function<void()> f);
    void on_body(std::function<void(std::string_view, bool)> f);
    /// The caller has let go of it: 500 where nothing was said, else the answer breaks off.
    void abandon();

    // The server's side: its thread.
    /// The head, once it is known; at most once.
    std::optional<Head> take_head();
    /// Appends at most `most` bytes of the body to `out`; true when the body ends with them.
    bool read(std::string& out, size_t most);
    size_t available();
    Headers take_trailers();
    /// A piece of the request's body came.
    void body(std::string_view piece, bool ends);
    /// The caller has said all.
    bool ended();
    /// The answer cannot be completed: the client did not read it, or the caller let go of it.
    bool broken();
    /// The client has left, or the answer is broken: on_gone's function is called, unless the answer had ended.
    void leave();
    /// Mail arrived: the carrier, nullptr once the exchange has left it.
    Carrier* carrier() const { return carrier_; }
    void detach() { carrier_ = nullptr; }
    int stream() const { return stream_; }
    bool head_only() const { return head_only_; }
    void collected();

  private:
    void post();

    const std::shared_ptr<Mailbox> mailbox_;
    Carrier* carrier_;  // the server's thread's
    const int stream_;
    const bool head_only_;
    const size_t limit_;

    std::mutex mutex_;
    bool posted_ = false;
    bool begun_ = false, head_taken_ = false, ended_ = false, gone_ = false, broken_ = false, bodiless_ = false;
    Head head_;
    std::string body_;
    size_t read_ = 0;  // bytes of body_ that were read
    Headers trailers_;
    std::function<void()> on_gone_;
    std::function<void(std::string_view, bool)> on_body_;
};

/// The caller's handle. Its end without an end of the answer abandons the exchange.
class Handle : public Response {
  public:
    explicit Handle(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
    ~Handle() override { exchange_->abandon(); }
    void send(int status, Headers headers, std::string body, Headers trailers) override {
        exchange_->send(status, std::move(headers), std::move(body), std::move(trailers));
    }
    void begin(int status, Headers headers) override { exchange_->begin(status, std::move(headers)); }
    bool write(std::string_view piece) override { return exchange_->write(piece); }
    void end(Headers trailers) override { exchange_->end(std::move(trailers)); }
    void on_gone(std::function<void()> f) override { exchange_->on_gone(std::move(f)); }
    void on_body(std::function<void(std::string_view, bool)> f) override { exchange_->on_body(std::move(f)); }

  private:
    std::shared_ptr<Exchange> exchange_;
};

/// OpenAI's form of an error; `message` needs no escapes.
std::string error_body(int status, std::string_view message);

}  // namespace unsloth::http
