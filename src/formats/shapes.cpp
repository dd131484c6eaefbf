#include "unsloth/formats/shapes.h"

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/formats/hf_config.h"

namespace unsloth::formats {
namespace {

struct Shape {
    const char *name, *config;
};
constexpr Shape shapes[] = {
#include "shapes.inc"  // made by CMake from shapes/*.json
};

}  // namespace

std::vector<std::string> builtin_shape_names() {
    std::vector<std::string> names;
    for (const Shape& shape : shapes) names.emplace_back(shape.name);
    return names;
}

std::string builtin_config(const std::string& name) {
    std::string known;
    for (const Shape& shape : shapes) {
        if (name == shape.name) return shape.config;
        known += cat(known.empty() ? "" : ", ", shape.name);
    }
    const std::string meant = did_you_mean(nearest(name, builtin_shape_names()));
    throw Error("option.invalid-value", cat("--shape ", name, ": no such shape"),
                cat(meant, meant.empty() ? "" : " ", "Known: ", known, "; or give --model_config with a config.json."));
}

spec::ModelSpec builtin_shape(const std::string& name) {
    return parse_model_spec(builtin_config(name), name);
}

}  // namespace unsloth::formats
