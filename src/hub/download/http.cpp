#include "hub/download/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "hub/cache.h"
#include "unsloth/core/error.h"
#include "unsloth/core/version.h"

namespace unsloth::hub {

std::optional<std::string> certificates() {
    for (const char* const name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"})
        if (const auto file = environment(name)) return file;
    for (const char* const file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                   "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
        std::error_code ignored;
        if (std::filesystem::exists(file, ignored)) return file;
    }
    return std::nullopt;
}

namespace {

constexpr std::size_t most_text = std::size_t{256} << 20, most_complaint = 4096;
constexpr long most_redirects = 8;
constexpr long answer_patience = 60;  // seconds: storage checks what it was sent before it answers

/// Seconds without a byte after which a connection counts as broken; as huggingface_hub.
long patience() {
    const std::string text = environment("HF_HUB_DOWNLOAD_TIMEOUT").value_or("");
    long seconds = 0;
    std::from_chars(text.data(), text.data() + text.size(), seconds);
    return seconds > 0 ? seconds : 10;
}

/// "https://host:port" of an address.
std::string_view origin(std::string_view url) {
    const std::size_t scheme = url.find("://");
    return scheme == std::string_view::npos ? url : url.substr(0, url.find('/', scheme + 3));
}

/// The value of a header line of this name.
std::optional<std::string_view> header(std::string_view line, std::string_view name) {
    if (line.size() <= name.size() || line[name.size()] != ':') return std::nullopt;
    const bool same = std::equal(name.begin(), name.end(), line.begin(),
                                 [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
    if (!same) return std::nullopt;
    line.remove_prefix(name.size() + 1);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.remove_suffix(1);
    return line;
}

/// <https://…>; rel="next"
std::string next_link(std::string_view value) {
    const std::size_t next = value.find("rel=\"next\"");
    if (next == std::string_view::npos) return {};
    const std::size_t begin = value.rfind('<', next), end = value.rfind('>', next);
    return begin < end && end != std::string_view::npos ? std::string(value.substr(begin + 1, end - begin - 1)) : "";
}

/// "api";r=0;t=55: the seconds until requests are served again.
int64_t seconds_of_limit(std::string_view value) {
    const std::size_t at = value.find("t=");
    int64_t seconds = -1;
    if (value.find("r=0") != std::string_view::npos && at != std::string_view::npos)
        std::from_chars(value.data() + at + 2, value.data() + value.size(), seconds);
    return seconds;
}

struct Transfer {
    CURL* curl;
    Reply* reply;
    Sink* sink;
    const std::function<bool()>* stopped;
    bool began = false;
    int64_t limit_seconds = -1;
};

std::size_t take_header(char* data, std::size_t, std::size_t size, void* user) {
    auto& transfer = *static_cast<Transfer*>(user);
    Reply& reply = *transfer.reply;
    const std::string_view line(data, size);
    if (line.starts_with("HTTP/")) {  // of each answer on a way of redirections
        reply.link.clear(), reply.error_code.clear(), reply.error_message.clear(), reply.etag.clear();
        transfer.limit_seconds = -1;
    }
    if (const auto value = header(line, "link")) reply.link = next_link(*value);
    if (const auto value = header(line, "x-error-code")) reply.error_code = *value;
    if (const auto value = header(line, "x-error-message")) reply.error_message = value->substr(0, most_complaint);
    if (const auto value = header(line, "etag")) reply.etag = *value;
    if (const auto value = header(line, "ratelimit")) transfer.limit_seconds = seconds_of_limit(*value);
    return size;
}

std::size_t take_body(char* data, std::size_t, std::size_t size, void* user) {
    auto& transfer = *static_cast<Transfer*>(user);
    long status = 0;
    curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
    std::string& body = transfer.reply->body;
    if (transfer.sink == nullptr || status < 200 || status >= 300) {
        const std::size_t most = transfer.sink == nullptr ? most_text : most_complaint;
        if (transfer.sink == nullptr && body.size() + size > most) return 0;
        body.append(data, std::min(size, most - std::min(most, body.size())));
        return size;
    }
    if (!transfer.began) transfer.sink->begin(status == 206);
    transfer.began = true;
    return transfer.sink->take({data, size}) ? size : 0;
}

int ask_whether_stopped(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return (*static_cast<Transfer*>(user)->stopped)() ? 1 : 0;
}

}  // namespace

/// What a request sends: a text, or bytes.
struct Http::Outgoing {
    const std::string* text = nullptr;
    const char* type = nullptr;
    bool accept = false;
    std::span<const std::byte> bytes;
    const std::function<void(int64_t)>* sent = nullptr;
    std::size_t at = 0;

    static std::size_t give(char* into, std::size_t, std::size_t most, void* user) {
        auto& self = *static_cast<Outgoing*>(user);
        const std::size_t count = std::min(most, self.bytes.size() - self.at);
        if (count > 0) std::memcpy(into, self.bytes.data() + self.at, count);
        self.at += count;
        (*self.sent)(static_cast<int64_t>(count));
        return count;
    }

    /// The options of the request; its headers are appended to `headers`.
    curl_slist* prepare(CURL* curl, curl_slist* headers) {
        curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, std::max(patience(), answer_patience));
        if (text != nullptr) {
            curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(text->size()));
            curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text->c_str());
            headers = curl_slist_append(headers, cat("Content-Type: ", type).c_str());
            if (accept) headers = curl_slist_append(headers, cat("Accept: ", type).c_str());
        } else {
            curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
            curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes.size()));
            curl_easy_setopt(curl, CURLOPT_READFUNCTION, give);
            curl_easy_setopt(curl, CURLOPT_READDATA, this);
            curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
        }
        return curl_slist_append(headers, "Expect:");
    }
};

struct Http::Curl {
    CURL* handle = curl_easy_init();
    ~Curl() { curl_easy_cleanup(handle); }
};

Http::Http(std::string endpoint, std::string token, std::function<bool()> stopped)
    : endpoint_(std::move(endpoint)),
      token_(std::move(token)),
      stopped_(std::move(stopped)),
      curl_(std::make_unique<Curl>()) {
    UNSLOTH_CHECK(curl_->handle != nullptr, "libcurl cannot begin");
}

Http::~Http() = default;

Reply Http::get(const std::string& url) {
    return perform(url, 0, nullptr);
}

Reply Http::get_into(const std::string& url, int64_t offset, Sink& sink) {
    return perform(url, offset, &sink);
}

Reply Http::post(const std::string& url, const std::string& body, const char* type, bool accept) {
    Outgoing outgoing{&body, type, accept, {}, nullptr, 0};
    return perform(url, 0, nullptr, &outgoing);
}

Reply Http::put(const std::string& url, std::span<const std::byte> bytes, const std::function<void(int64_t)>& sent) {
    Outgoing outgoing{nullptr, nullptr, false, bytes, &sent, 0};
    return perform(url, 0, nullptr, &outgoing);
}

Reply Http::perform(const std::string& url, int64_t offset, Sink* sink, Outgoing* outgoing) {
    CURL* const curl = curl_->handle;
    curl_easy_reset(curl);  // keeps its connections
    Reply reply;
    Transfer transfer{curl, &reply, sink, &stopped_};
    char words[CURL_ERROR_SIZE] = {};
    const bool encrypted = endpoint_.starts_with("https://");
    const char* const protocols = encrypted ? "https" : "http,https";  // no way back to plain text
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, most_redirects);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, patience());
    curl_easy_setopt(curl, CURLOPT_USERAGENT, cat("unsloth-train/", version).c_str());
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, words);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, ask_whether_stopped);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
    if (sink != nullptr) curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
    if (offset > 0) curl_easy_setopt(curl, CURLOPT_RANGE, cat(offset, "-").c_str());
    if (const auto file = certificates()) curl_easy_setopt(curl, CURLOPT_CAINFO, file->c_str());
    // libcurl drops this header where it is redirected to another host or port.
    curl_slist* headers = nullptr;
    if (!token_.empty() && origin(url) == origin(endpoint_))
        headers = curl_slist_append(headers, cat("Authorization: Bearer ", token_).c_str());
    if (outgoing != nullptr) headers = outgoing->prepare(curl, headers);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    const CURLcode code = curl_easy_perform(curl);
    curl_slist_free_all(headers);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
    reply.connected = reply.status != 0;
    if (code != CURLE_OK) reply.failure = words[0] != '\0' ? words : curl_easy_strerror(code);
    curl_off_t wait = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait);
    reply.retry_after = wait > 0 ? static_cast<int64_t>(wait) : transfer.limit_seconds;
    return reply;
}

std::string Http::escaped(const std::string& text) {
    char* const made = curl_easy_escape(nullptr, text.c_str(), static_cast<int>(text.size()));
    std::string result = made;
    curl_free(made);
    return result;
}

}  // namespace unsloth::hub
