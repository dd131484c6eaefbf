// A request for completions that the engine may begin, whatever its form was.
#pragma once

#include <optional>
#include <vector>

#include "serve/chosen.h"
#include "serve/exchange.h"
#include "serve/prompts.h"
#include "unsloth/serve/service.h"

namespace unsloth::serve {

struct Service::Prepared {
    openai::AnswerRequest request;
    Chosen chosen;
    Job job;  ///< still without a receiver; its sequences are n of each prompt
    std::vector<EncodedPrompt> prompts;
    std::optional<ToolReading> tools;
};

}  // namespace unsloth::serve
