// The page at `/`, with which a person talks to the service's models in a browser.
#pragma once

#include <string>

#include "unsloth/http/server.h"

namespace unsloth::serve {

/// HTML that needs nothing else from a network. It has no secrets.
const char* page_text();
/// Of its response: its type, and what a browser may do with it. Only its own script and style run.
http::Headers page_headers();

}  // namespace unsloth::serve
