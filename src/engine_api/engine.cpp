#include "unsloth/engine_api/engine.h"

namespace unsloth::engine_api {

// Out of line, so that the class's virtual table and run-time type live in the base library, which both sides share.
Engine::~Engine() = default;

}  // namespace unsloth::engine_api
