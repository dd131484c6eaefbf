#include "http/exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "http/request_parser.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::http {
namespace {

constexpr size_t compact_from = size_t{64} << 10;

void check_headers(const Headers& headers) {
    for (const auto& [name, value] : headers)
        UNSLOTH_CHECK(is_token(name) && is_field_value(value), "the answer's header field ", name, " is malformed");
}

}  // namespace

Mailbox::Mailbox() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw Error("process.system-call", cat("eventfd: ", std::strerror(errno)));
}
Mailbox::~Mailbox() {
    ::close(fd_);
}
void Mailbox::post(std::shared_ptr<Exchange> exchange) {
    bool wake = false;
    {
        const std::lock_guard lock(mutex_);
        if (closed_) return;
        if (exchange) changed_.push_back(std::move(exchange));
        wake = !std::exchange(signalled_, true);
    }
    const uint64_t one = 1;
    if (wake && ::write(fd_, &one, sizeof one) < 0 && errno != EAGAIN)
        log::error("http: the server's thread cannot be woken: ", std::strerror(errno));
}
std::vector<std::shared_ptr<Exchange>> Mailbox::take() {
    const std::lock_guard lock(mutex_);
    uint64_t count = 0;
    if (std::exchange(signalled_, false) && ::read(fd_, &count, sizeof count) < 0) count = 0;
    return std::exchange(changed_, {});
}

void Mailbox::close() {
    std::vector<std::shared_ptr<Exchange>> left;  // declared first: ends after the lock
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(changed_);
}

void Exchange::send(int status, Headers headers, std::string body, Headers trailers) {
    check_headers(headers);
    check_headers(trailers);
    {
        const std::lock_guard lock(mutex_);
        UNSLOTH_CHECK(!begun_, "an answer was begun twice");
        begun_ = ended_ = true;
        on_gone_ = nullptr;
        head_ = {status, std::move(headers), body.size()};
        bodiless_ = head_only_ || status == 204 || status == 304;
        if (!bodiless_) body_ = std::move(body);
        trailers_ = std::move(trailers);
    }
    post();
}

void Exchange::begin(int status, Headers headers) {
    check_headers(headers);
    {
        const std::lock_guard lock(mutex_);
        UNSLOTH_CHECK(!begun_, "an answer was begun twice");
        begun_ = true;
        head_ = {status, std::move(headers), std::nullopt};
        bodiless_ = head_only_ || status == 204 || status == 304;
    }
    post();
}

bool Exchange::write(std::string_view piece) {
    {
        const std::lock_guard lock(mutex_);
        UNSLOTH_CHECK(begun_ && !ended_, "a piece of an answer that has not begun or has ended");
        if (gone_ || broken_) return false;
        if (bodiless_ || piece.empty()) return true;
        if (body_.size() - read_ + piece.size() > limit_)
            broken_ = true;
        else
            body_.append(piece);
    }
    post();
    return !broken();
}

void Exchange::end(Headers trailers) {
    check_headers(trailers);
    {
        const std::lock_guard lock(mutex_);
        UNSLOTH_CHECK(begun_ && !ended_, "an answer ended before it began, or twice");
        ended_ = true;
        on_gone_ = nullptr;
        trailers_ = std::move(trailers);
    }
    post();
}

void Exchange::on_gone(std::function<void()> f) {
    {
        const std::lock_guard lock(mutex_);
        if (ended_) return;
        if (!gone_) {
            on_gone_ = std::move(f);
            return;
        }
    }
    f();
}

void Exchange::on_body(std::function<void(std::string_view, bool)> f) {
    const std::lock_guard lock(mutex_);
    if (!ended_ && !gone_) on_body_ = std::move(f);
}

/// `f` may hold the caller's response: it goes once no further piece can come, or none is of use.
void Exchange::body(std::string_view piece, bool ends) {
    std::function<void(std::string_view, bool)> taken;
    {
        const std::lock_guard lock(mutex_);
        if (ends || ended_)
            taken.swap(on_body_);
        else
            taken = on_body_;
        if (ended_) return;
    }
    try {
        if (taken) taken(piece, ends);
    } catch (const std::exception& error) {
        log::error("http: a piece of a request failed: ", error.what());
        abandon();
    }
}

void Exchange::abandon() {
    {
        const std::lock_guard lock(mutex_);
        if (ended_ || gone_) return;
        on_gone_ = nullptr;
        ended_ = true;
        if (begun_) {
            broken_ = true;
        } else {
            begun_ = true;
            std::string body = error_body(500, "the server gave no answer");
            head_ = {500, {{"content-type", "application/json"}}, body.size()};
            if (!head_only_) body_ = std::move(body);
        }
    }
    post();
}

std::optional<Head> Exchange::take_head() {
    const std::lock_guard lock(mutex_);
    if (!begun_ || head_taken_) return std::nullopt;
    head_taken_ = true;
    return std::move(head_);
}

bool Exchange::read(std::string& out, size_t most) {
    const std::lock_guard lock(mutex_);
    const size_t count = std::min(most, body_.size() - read_);
    out.append(body_, read_, count);
    read_ += count;
    if (read_ == body_.size()) {
        body_.clear();
        read_ = 0;
    } else if (read_ >= compact_from && read_ * 2 >= body_.size()) {
        body_.erase(0, read_);
        read_ = 0;
    }
    return ended_ && !broken_ && body_.empty();
}

size_t Exchange::available() {
    const std::lock_guard lock(mutex_);
    return body_.size() - read_;
}
Headers Exchange::take_trailers() {
    const std::lock_guard lock(mutex_);
    return std::move(trailers_);
}
bool Exchange::ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
}
bool Exchange::broken() {
    const std::lock_guard lock(mutex_);
    return broken_;
}

void Exchange::leave() {
    carrier_ = nullptr;
    std::function<void()> on_gone;
    std::function<void(std::string_view, bool)> reader;  // ends after the lock, as it may hold the response
    {
        const std::lock_guard lock(mutex_);
        gone_ = true;
        reader.swap(on_body_);
        std::string().swap(body_);
        read_ = 0;
        on_gone.swap(on_gone_);
    }
    try {
        if (on_gone) on_gone();
    } catch (const std::exception& error) {
        log::error("http: what follows a client's leave failed: ", error.what());
    }
}

void Exchange::collected() {
    const std::lock_guard lock(mutex_);
    posted_ = false;
}

void Exchange::post() {
    {
        const std::lock_guard lock(mutex_);
        if (posted_ || gone_) return;
        posted_ = true;
    }
    mailbox_->post(shared_from_this());
}

std::string error_body(int status, std::string_view message) {
    const char* type = status >= 500 ? "server_error" : "invalid_request_error";
    return cat(R"({"error":{"message":")", message, R"(","type":")", type, R"(","param":null,"code":null}})");
}

}  // namespace unsloth::http
