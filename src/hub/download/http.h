// GET, POST and PUT over HTTP, by libcurl.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unsloth::hub {

/// The file of certificates to trust: the user's, or where systems have it when libcurl was built on another one.
std::optional<std::string> certificates();

struct Reply {
    long status = 0;            ///< 0: no answer came
    std::string body;           ///< of get(), and of any answer that is no success (its beginning)
    std::string failure;        ///< libcurl's words where the connection failed or broke off; empty: it ended well
    bool connected = false;     ///< somebody answered
    std::string link;           ///< address of the next page; empty: none
    std::string error_code;     ///< X-Error-Code: RepoNotFound, RevisionNotFound, GatedRepo, …
    std::string error_message;  ///< X-Error-Message
    std::string etag;           ///< ETag
    int64_t retry_after = -1;   ///< seconds that the server asks to wait; -1: it does not say

    bool ok() const { return failure.empty() && status >= 200 && status < 300; }
};

/// Where the bytes of a file go.
class Sink {
  public:
    virtual ~Sink() = default;
    /// Called before the first byte: `resumed` is false when the server sends the file from its beginning.
    virtual void begin(bool resumed) = 0;
    /// False: no more is wanted.
    virtual bool take(std::string_view bytes) = 0;
};

/// One connection, reused from call to call; for one thread.
class Http {
  public:
    /// `endpoint`: the token goes there alone, whatever is linked or redirected to. `stopped` is asked several times a
    /// second; true ends a transfer.
    Http(std::string endpoint, std::string token, std::function<bool()> stopped);
    ~Http();
    Http(const Http&) = delete;
    Http& operator=(const Http&) = delete;

    /// A text of at most 256 MiB.
    Reply get(const std::string& url);
    /// A file from the byte `offset` on.
    Reply get_into(const std::string& url, int64_t offset, Sink& sink);
    /// Sends a text of the media type `type`, and asks for an answer of this type where `accept` is set. Neither this
    /// nor put() follows redirects: what is sent goes to this host alone.
    Reply post(const std::string& url, const std::string& body, const char* type, bool accept = false);
    /// Sends bytes, which stay where they are until it returns. `sent` gets how many went out since its last call.
    Reply put(const std::string& url, std::span<const std::byte> bytes, const std::function<void(int64_t)>& sent);

    /// A part of an address, escaped.
    static std::string escaped(const std::string& text);

  private:
    struct Curl;
    struct Outgoing;
    Reply perform(const std::string& url, int64_t offset, Sink* sink, Outgoing* outgoing = nullptr);

    std::string endpoint_, token_;
    std::function<bool()> stopped_;
    std::unique_ptr<Curl> curl_;
};

}  // namespace unsloth::hub
