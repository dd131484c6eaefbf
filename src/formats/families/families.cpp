#include <algorithm>
#include <array>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

constexpr std::array families = {&llama_family, &mistral_family, &qwen2_family, &qwen3_family};

}  // namespace

const Family* find_family(std::string_view model_type) {
    const auto* const found = std::ranges::find(families, model_type, [](const Family* f) { return f->model_type; });
    return found == families.end() ? nullptr : *found;
}

const Family& family_of(const spec::ModelSpec& spec) {
    const Family* const family = find_family(spec.model_type);
    UNSLOTH_CHECK(family != nullptr, "no family '", spec.model_type, "'");
    return *family;
}

std::string family_names() {
    std::string names;
    for (const Family* const family : families) {
        const char* const before = names.empty() ? "" : family == families.back() ? " and " : ", ";
        names += cat(before, family->model_type);
    }
    return names;
}

}  // namespace unsloth::formats
