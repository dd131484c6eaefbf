// One request to the service, and how it is answered.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "unsloth/http/server.h"
#include "unsloth/openai/error.h"

namespace unsloth::serve {

/// x-request-id: the client's, where it may be in a header and a log, else a new one.
std::string request_id_of(const http::Request& request);
/// ApiError 403 for a request that a browser marks as another site's, and with `local_names_only` for one that gives
/// this host another name (a page whose name was made to lead here, "DNS rebinding", is the same site to a browser).
void refuse_other_sites(const http::Request& request, bool local_names_only);

struct Call {
    http::Request request;
    std::shared_ptr<http::Response> response;
    std::string id;      ///< x-request-id
    std::string client;  ///< rows go to clients in turn: the key's number, or the address
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();

    /// Without the request, for those who answer later.
    Call reply() const { return {{}, response, id, client, begun}; }
    /// Of an answer: its own, the request's id, and how long it took. Browsers take its type as it is.
    http::Headers headers(http::Headers all) const {
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun);
        all.emplace_back("x-content-type-options", "nosniff");
        all.emplace_back("x-request-id", id);
        all.emplace_back("openai-processing-ms", std::to_string(ms.count()));
        return all;
    }
    http::Headers headers(const char* content_type) const { return headers({{"content-type", content_type}}); }
    void send(int status, std::string body, const char* content_type = "application/json") const {
        response->send(status, headers(content_type), std::move(body));
    }
    void refuse(const openai::ApiError& why) const {
        http::Headers all = headers("application/json");
        if (why.status() == 429 || why.status() == 503) all.emplace_back("retry-after", "1");
        if (why.status() == 401) all.emplace_back("www-authenticate", "Bearer");
        response->send(why.status(), std::move(all), why.body());
    }
};

}  // namespace unsloth::serve
