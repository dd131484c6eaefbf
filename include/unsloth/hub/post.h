// POST over HTTP, by libunsloth_hub.so, which alone links libcurl.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace unsloth::hub {

struct PostRequest {
    std::string url;   ///< http or https; redirects are not followed, so that the body goes to this host alone
    std::string body;  ///< JSON
    std::chrono::milliseconds timeout{60'000};
    std::size_t most_bytes = 256U << 20;  ///< of the answer
    std::function<bool()> stopped;        ///< asked about once a second; true ends the request. Empty: never
};

struct PostReply {
    long status = 0;  ///< 0: no answer came
    std::string body;
    std::string failure;     ///< libcurl's words where the connection failed or broke off; empty: it ended well
    bool connected = false;  ///< the server took the connection: it may have begun to work
    bool timed_out = false;
};

/// Opens the library when it is first called. runtime Error where it cannot be opened. From any thread.
PostReply post(const PostRequest& request);

}  // namespace unsloth::hub
