// Requests of an upload: sent again while the hub is busy, and what its refusals mean.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "hub/download/asking.h"
#include "unsloth/core/error.h"

namespace unsloth::hub {

/// One connection to the hub. Every call sends its request up to five times while the failure may pass.
class Conversation {
  public:
    explicit Conversation(Access access);

    const Access& access() const { return access_; }
    Http& http() { return http_; }

    /// GET. `what` for messages: "asking for ORG/NAME".
    Reply get(const std::string& path, const std::string& what);
    /// POST of JSON to a path of the endpoint (or to a full address).
    Reply post(const std::string& path, const std::string& body, const std::string& what,
               const char* type = "application/json", bool accept = false);
    /// Repeats `request` while its failure may pass. Unreachable where the hub was never heard; Interrupted when
    /// stopped.
    Reply persist(const std::string& what, const std::function<Reply()>& request);

    /// The answer as JSON. Input Error for anything else.
    nlohmann::json parsed(const Reply& reply, const std::string& what) const;
    /// What an answer that is no success means. Input Error with what to do, Unreachable after many attempts.
    [[noreturn]] void refuse(const Reply& reply, const std::string& repository, const std::string& what) const;
    Error strange(const std::string& what, const std::string& how) const;

  private:
    Access access_;
    Http http_;
    bool heard_ = false;
};

}  // namespace unsloth::hub
