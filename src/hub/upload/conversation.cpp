#include "hub/upload/conversation.h"

#include "unsloth/core/interrupt.h"
#include "unsloth/core/json.h"

namespace unsloth::hub {
namespace {

bool is_stopped() {
    return interrupt_requested() != 0;
}

/// The hub's own words: its header, or "error" of its answer. A server that repeats the token is not repeated.
std::string words_of(const Reply& reply, const Access& access) {
    std::string words = reply.error_message;
    if (words.empty()) {
        const auto json = try_parse_json<nlohmann::json>(reply.body.substr(0, 4096));
        if (json.is_object() && json.contains("error") && json["error"].is_string()) words = json["error"];
    }
    for (std::size_t at = 0; !access.token.empty() && (at = words.find(access.token, at)) != std::string::npos; at += 1)
        words.replace(at, access.token.size(), "*");
    return cat("HTTP ", reply.status, words.empty() ? "" : ": ", words);
}

}  // namespace

Conversation::Conversation(Access access)
    : access_(std::move(access)), http_(access_.endpoint, access_.token, is_stopped) {}

Reply Conversation::persist(const std::string& what, const std::function<Reply()>& request) {
    Patience patience;
    while (true) {
        Reply reply = request();
        heard_ = heard_ || reply.connected;
        stop_if_interrupted("stopped; the upload is not complete, and the next one continues from there");
        if (reply.ok() || !is_passing(reply)) return reply;
        // Who is not there at all need not be asked five times.
        if (!heard_) throw Unreachable(cat(access_.endpoint, " cannot be reached: ", reply.failure));
        if (patience.wait(reply, what, is_stopped)) continue;
        stop_if_interrupted("stopped; the upload is not complete, and the next one continues from there");
        throw Unreachable(cat(what, " failed again and again, at last with ",
                              reply.failure.empty() ? words_of(reply, access_) : reply.failure));
    }
}

Reply Conversation::get(const std::string& path, const std::string& what) {
    return persist(what, [&] { return http_.get(access_.endpoint + path); });
}

Reply Conversation::post(const std::string& path, const std::string& body, const std::string& what, const char* type,
                         bool accept) {
    const std::string url = path.starts_with('/') ? access_.endpoint + path : path;
    return persist(what, [&] { return http_.post(url, body, type, accept); });
}

nlohmann::json Conversation::parsed(const Reply& reply, const std::string& what) const {
    nlohmann::json json = try_parse_json<nlohmann::json>(reply.body);
    if (!json.is_object()) throw strange(what, "is no JSON object");
    return json;
}

Error Conversation::strange(const std::string& what, const std::string& how) const {
    return Error("hub.request-failed", cat(what, ": what ", access_.endpoint, " answers ", how),
                 "HF_ENDPOINT names the hub that is asked; a proxy may answer in its place.");
}

void Conversation::refuse(const Reply& reply, const std::string& repository, const std::string& what) const {
    const std::string said = words_of(reply, access_);
    if (reply.status == 401)
        throw Error("hub.token-refused",
                    cat(repository, ": ", access_.endpoint, " does not accept the token (", said, ")"),
                    "Set HF_TOKEN to a valid token that may write, or run `hf auth login`.");
    if (reply.status == 402 || reply.status == 403 || reply.status == 404)
        throw Error("hub.token-refused", cat(repository, ": the token may not write there (", said, ")"),
                    "Set HF_TOKEN to a token with write access, or name a repository of your own account.");
    if (reply.status >= 300 && reply.status < 400)
        throw Error("hub.request-failed", cat(repository, ": the hub has it at another address (", said, ")"),
                    "It was renamed: give its new name.");
    throw Error("hub.request-failed", cat(repository, ": ", what, " failed: ", said),
                "HF_ENDPOINT names the hub that is asked.");
}

}  // namespace unsloth::hub
