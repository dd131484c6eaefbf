// Regular expressions over module paths, as PEFT's options give them. They may come from anyone's adapter_config.json:
// a pattern costs a bounded time, and no stack.
#pragma once

#include <memory>
#include <string>

namespace unsloth::spec {

class ModulePattern {
  public:
    /// `expression` as Python's `re` reads it. Usage Error that names `option` and `shown` when it is none.
    ModulePattern(const std::string& expression, std::string option, const std::string& shown);

    /// Whether the expression matches the whole of `path`. Usage Error when that takes too long to tell.
    bool matches(const std::string& path) const;

  private:
    struct Code;
    std::shared_ptr<const Code> code_;
    std::string option_, shown_;
};

}  // namespace unsloth::spec
