#include "tokenizer/jinja/arguments.h"

#include <algorithm>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

Bound::Bound(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
             std::size_t required, bool positional_only)
    : function_(function) {
    UNSLOTH_CHECK(names.size() <= values_.size(), function);
    if (arguments.positional.size() > names.size()) {
        fail(cat(function, "() takes at most ", names.size(), " arguments (", arguments.positional.size(), " given)"));
    }
    std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
    for (const auto& [name, value] : arguments.named) {
        const auto found =
            std::find_if(names.begin(), names.end(), [&, &name = name](const char* n) { return name == n; });
        if (found == names.end() || positional_only)
            fail(cat(function, "() got an unexpected keyword argument '", name, "'"));
        auto& place = values_[static_cast<std::size_t>(found - names.begin())];
        if (place) fail(cat(function, "() got multiple values for argument '", name, "'"));
        place = value;
    }
    for (std::size_t i = 0; i < required; ++i) {
        if (!values_[i]) fail(cat(function, "() missing required argument '", names.begin()[i], "'"));
    }
}

int64_t Bound::integer_or(std::size_t i, int64_t otherwise) const {
    return values_[i] ? to_index(*values_[i], function_) : otherwise;
}

const std::string& Bound::string(std::size_t i) const {
    if (values_[i]->is_undefined()) fail(values_[i]->undefined_message());
    if (!values_[i]->is_string()) fail(cat(function_, "() argument must be str, not ", type_name(*values_[i])));
    return values_[i]->string();
}

}  // namespace unsloth::tokenizer::jinja
