#include "unsloth/formats/model_writer.h"

namespace unsloth::formats {

spec::WeightType resolve_weight_type(spec::WeightType type, const spec::ModelSpec& spec) {
    if (type != spec::WeightType::automatic) return type;
    return spec.dtype == spec::DType::f32   ? spec::WeightType::f32
           : spec.dtype == spec::DType::f16 ? spec::WeightType::f16
                                            : spec::WeightType::bf16;
}

spec::DType storage_dtype(spec::WeightType type, const spec::ModelSpec& spec) {
    switch (type) {
        case spec::WeightType::f32:
            return spec::DType::f32;
        case spec::WeightType::bf16:
            return spec::DType::bf16;
        case spec::WeightType::f16:
            return spec::DType::f16;
        default:
            return spec.dtype;
    }
}

}  // namespace unsloth::formats
