#include "formats/vision_rules.h"

#include "unsloth/core/error.h"

namespace unsloth::formats {

std::vector<spec::TensorRule> vision_rules(const spec::ModelSpec& spec, bool within) {
    std::vector<spec::TensorRule> rules;
    if (!spec.vision) return rules;
    for (const spec::VisionTensor& tensor : spec::vision_tensors(*spec.vision)) {
        const bool linear = spec::holds_products(tensor);
        rules.push_back({cat(within ? "model." : "", spec.vision->tiles ? "" : "visual.", tensor.name),
                         linear ? spec::TensorRole::linear : spec::TensorRole::bias,
                         {-1},
                         tensor.shape,
                         linear});
    }
    return rules;
}

void flatten_shape(std::vector<int64_t>& shape) {
    for (; shape.size() > 2; shape.pop_back()) shape[shape.size() - 2] *= shape.back();
}

}  // namespace unsloth::formats
