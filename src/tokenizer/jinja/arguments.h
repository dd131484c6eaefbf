// Arguments of a native function, put into place by position and name as Python does.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

class Bound {
  public:
    /// `names` in order; the first `required` must be given. Failure otherwise, as for unknown names. With
    /// `positional_only` none can be given by name.
    Bound(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
          std::size_t required, bool positional_only = false);

    bool has(std::size_t i) const { return values_[i].has_value(); }
    /// Given, and not none.
    bool given(std::size_t i) const { return values_[i] && !values_[i]->is_none(); }
    const Value& operator[](std::size_t i) const { return *values_[i]; }
    Value value_or(std::size_t i, Value otherwise) const { return values_[i] ? *values_[i] : otherwise; }
    bool boolean_or(std::size_t i, bool otherwise) const { return values_[i] ? truthy(*values_[i]) : otherwise; }
    int64_t integer_or(std::size_t i, int64_t otherwise) const;
    /// A string; Failure for another type.
    const std::string& string(std::size_t i) const;

  private:
    const char* function_;
    std::array<std::optional<Value>, 6> values_;
};

}  // namespace unsloth::tokenizer::jinja
