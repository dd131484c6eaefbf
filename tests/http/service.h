// The service that the server's tests ask: it echoes, streams, and waits for a test to answer.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/http/server.h"

namespace unsloth::http {

/// /echo answers at once; /throw fails; /drop gives no answer; /stream has five pieces from another thread and a
/// trailer; /wait begins an answer and keeps it for the test; /pieces (with ServerOptions::takes_pieces) sends each
/// piece back in brackets, and ends with the body, or at "!". It counts who left.
class Service {
  public:
    explicit Service(ServerOptions options = {})
        : server(std::move(options), [this](Request request, std::shared_ptr<Response> response) {
              handle(std::move(request), std::move(response));
          }) {}
    ~Service() {
        server.stop(std::chrono::steady_clock::now());
        for (auto& thread : threads_) thread.join();
    }

    /// The next response of /wait.
    std::shared_ptr<Response> waiting() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !waiting_.empty(); }))
            throw std::runtime_error("no request waits");
        auto response = std::move(waiting_.front());
        waiting_.pop_front();
        return response;
    }
    /// Waits until so many clients have left.
    bool left(int count) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return left_ >= count; }) && left_ == count;
    }
    int handled() {
        const std::lock_guard lock(mutex_);
        return handled_;
    }

  private:
    void handle(Request request, std::shared_ptr<Response> response) {
        const std::lock_guard lock(mutex_);
        ++handled_;
        if (request.path == "/throw") throw std::runtime_error("the service failed");
        if (request.path == "/drop") return;
        response->on_gone([this] {
            const std::lock_guard inner(mutex_);
            ++left_;
            changed_.notify_all();
        });
        if (request.path == "/wait") {
            response->begin(200, {{"content-type", "text/event-stream"}});
            waiting_.push_back(std::move(response));
            changed_.notify_all();
        } else if (request.path == "/stream") {
            threads_.emplace_back([response = std::move(response)] {
                response->begin(200, {{"content-type", "application/grpc"}});
                for (char c = 'a'; c < 'f'; ++c) response->write(std::string(3, c));
                response->end({{"grpc-status", "0"}});
            });
        } else if (request.path == "/pieces") {
            response->begin(200, {});
            response->on_body([response](std::string_view piece, bool ends) {
                if (!piece.empty()) response->write(cat('[', piece, ']'));
                if (ends || piece == "!") response->end();
            });
        } else {
            response->send(200, {{"x-path", request.path}}, request.method + ' ' + request.query + ' ' + request.body);
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Response>> waiting_;
    std::vector<std::thread> threads_;
    int left_ = 0, handled_ = 0;

  public:
    Server server;
};

}  // namespace unsloth::http
