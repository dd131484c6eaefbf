// How the hub is asked: who asks, what is done when it does not answer, and what its refusals mean.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "hub/download/http.h"
#include "hub/downloader.h"

namespace unsloth::hub {

/// The hub that requests are sent to, and the token that they carry.
struct Access {
    std::string endpoint;  ///< HF_ENDPOINT, without a slash at its end
    std::string token;     ///< HF_TOKEN, or what `hf auth login` left; empty: none
};
Access access_of_environment();

/// Between requests that failed: five attempts, each after twice the time.
class Patience {
  public:
    /// Waits before the next attempt, as long as the server asks for; `stopped` ends the wait. False: there is none.
    bool wait(const Reply& reply, const std::string& what, const std::function<bool()>& stopped);
    /// Something arrived.
    void renew() { attempts_ = 0; }

  private:
    int attempts_ = 0;
};

/// Whether another attempt may help: a connection that broke, a server that is busy or ill.
bool is_passing(const Reply& reply);

/// What an answer that is no success means. Input Error with what to do; Unreachable when there was no answer.
[[noreturn]] void refuse(const Reply& reply, const Repository& repository, const Access& access,
                         const std::string& what);

}  // namespace unsloth::hub
