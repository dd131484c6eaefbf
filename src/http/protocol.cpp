#include "http/protocol.h"

#include <array>
#include <ctime>

#include "unsloth/core/log.h"

namespace unsloth::http {

std::shared_ptr<Exchange> start_exchange(Shared& shared, Carrier& carrier, int stream, Request request) {
    const bool head_only = request.method == "HEAD";
    if (shared.draining) return refuse_exchange(shared, carrier, stream, head_only, 503, "the server is shutting down");
    auto exchange =
        std::make_shared<Exchange>(shared.mailbox, &carrier, stream, head_only, shared.options.buffered_bytes);
    const auto response = std::make_shared<Handle>(exchange);
    try {
        shared.handler(std::move(request), response);
    } catch (const std::exception& error) {
        log::error("http: a request failed: ", error.what());
        exchange->abandon();
    }
    return exchange;
}

std::shared_ptr<Exchange> refuse_exchange(Shared& shared, Carrier& carrier, int stream, bool head_only, int status,
                                          std::string_view message) {
    auto exchange =
        std::make_shared<Exchange>(shared.mailbox, &carrier, stream, head_only, shared.options.buffered_bytes);
    exchange->send(status, {{"content-type", "application/json"}}, error_body(status, message));
    return exchange;
}

std::string date_now() {
    const std::time_t now = std::time(nullptr);
    static thread_local std::time_t said = 0;
    static thread_local std::string text;
    if (now == said) return text;
    static constexpr std::array days{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr std::array months{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 64> rest{};
    std::strftime(rest.data(), rest.size(), " %Y %H:%M:%S GMT", &parts);
    const std::string day = std::to_string(parts.tm_mday);
    text = std::string(days[static_cast<size_t>(parts.tm_wday)]) + ", " + (day.size() < 2 ? "0" : "") + day + ' ' +
           months[static_cast<size_t>(parts.tm_mon)] + rest.data();
    said = now;
    return text;
}

bool is_connection_field(std::string_view name) {
    return name == "connection" || name == "keep-alive" || name == "transfer-encoding" || name == "upgrade" ||
           name == "content-length" || name == "proxy-connection" || name == "date";
}

}  // namespace unsloth::http
