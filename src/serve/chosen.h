// What a request's model is: the base, or an adapter on it.
#pragma once

#include <memory>
#include <string>

#include "unsloth/generate/request.h"
#include "unsloth/serve/service.h"

namespace unsloth::serve {

struct Service::Chosen {
    std::string name, fingerprint;
    std::shared_ptr<const LoadedAdapter> adapter;  ///< nullptr: the base
    double decision_temperature = 1;

    /// A sequence of it, still without a prompt.
    generate::Request request() const {
        generate::Request made;
        if (!adapter) return made;
        made.adapter = static_cast<int32_t>(adapter->slot);
        made.prefix = adapter->prefix;
        return made;
    }
};

}  // namespace unsloth::serve
