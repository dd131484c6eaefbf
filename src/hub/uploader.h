// The entry of libunsloth_hub.so for uploads.
#pragma once

#include <string>

#include "unsloth/hub/push.h"

namespace unsloth::hub {

class Uploader {
  public:
    virtual ~Uploader() = default;
    /// As require_pushable(); Unreachable when the hub was not heard at all.
    virtual std::string require(const PushTarget& target, bool creates) = 0;
    /// As push(), with a target whose name is a full one.
    virtual Pushed push(const PushRequest& request) = 0;
};

}  // namespace unsloth::hub

extern "C" {
/// The caller owns the result.
unsloth::hub::Uploader* unsloth_create_uploader();
}
