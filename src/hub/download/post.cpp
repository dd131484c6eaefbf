#include <curl/curl.h>

#include <memory>
#include <string>
#include <string_view>

#include "hub/download/http.h"
#include "hub/poster.h"
#include "unsloth/core/error.h"
#include "unsloth/core/version.h"

namespace unsloth::hub {
namespace {

struct AnswerBody {
    std::string* text;
    std::size_t most;
};

std::size_t take_answer(char* data, std::size_t, std::size_t size, void* user) {
    auto& body = *static_cast<AnswerBody*>(user);
    if (body.text->size() + size > body.most) return 0;
    body.text->append(data, size);
    return size;
}

int ask_whether_to_stop(void* request, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<const PostRequest*>(request)->stopped() ? 1 : 0;
}

/// Whether the address names this machine, which no proxy reaches.
bool is_loopback(std::string_view url) {
    url.remove_prefix(url.find("://") + 3);
    for (const std::string_view name : {"localhost", "127.", "[::1]"})
        if (url.starts_with(name)) return true;
    return false;
}

}  // namespace
}  // namespace unsloth::hub

void unsloth_http_post(const unsloth::hub::PostRequest* request, unsloth::hub::PostReply* reply) {
    using unsloth::hub::AnswerBody;
    const std::unique_ptr<CURL, void (*)(CURL*)> handle(curl_easy_init(), curl_easy_cleanup);
    UNSLOTH_CHECK(handle != nullptr, "libcurl cannot begin");
    CURL* const curl = handle.get();
    char words[CURL_ERROR_SIZE] = {};
    AnswerBody body{&reply->body, request->most_bytes};
    curl_easy_setopt(curl, CURLOPT_URL, request->url.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request->timeout.count()));
    curl_easy_setopt(curl, CURLOPT_USERAGENT, unsloth::cat("unsloth-train/", unsloth::version).c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request->body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body.c_str());
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, words);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, unsloth::hub::take_answer);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
    if (request->stopped) {
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, unsloth::hub::ask_whether_to_stop);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, request);
    }
    if (unsloth::hub::is_loopback(request->url)) curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (const auto file = unsloth::hub::certificates()) curl_easy_setopt(curl, CURLOPT_CAINFO, file->c_str());
    curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    const CURLcode code = curl_easy_perform(curl);
    curl_slist_free_all(headers);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply->status);
    curl_off_t connected = 0;
    curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME_T, &connected);
    reply->connected = connected > 0;
    reply->timed_out = code == CURLE_OPERATION_TIMEDOUT;
    if (code != CURLE_OK) reply->failure = words[0] != '\0' ? words : curl_easy_strerror(code);
}
