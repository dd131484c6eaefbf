// Names and shapes of the base's buffers: what is planned and what is loaded walk the same lists.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/weight_type.h"
#include "unsloth/weights/layout.h"

namespace unsloth::weights {

/// The matrices' types among the weights', and back.
inline spec::WeightType weight_type_of(at::ScalarType type) {
    return type == at::kFloat      ? spec::WeightType::f32
           : type == at::kBFloat16 ? spec::WeightType::bf16
                                   : spec::WeightType::f16;
}
inline at::ScalarType scalar_type_of(spec::WeightType type) {
    return type == spec::WeightType::f32 ? at::kFloat : type == spec::WeightType::bf16 ? at::kBFloat16 : at::kHalf;
}

struct BaseBuffer {
    int64_t layer = 0;
    Group group = Group::qkv;
    const char* what = "";
    int64_t rows = 0, columns = 0;
    at::ScalarType type = at::kByte;
    int64_t bytes() const { return rows * columns * static_cast<int64_t>(c10::elementSize(type)); }
    std::string name() const { return cat("layer ", layer, " ", name_of(group), what); }
};

/// A group in the compute type, with its margins.
inline BaseBuffer dense_buffer(const MatrixGroup& group, int64_t layer, Group g, at::ScalarType dtype) {
    return {layer, g, "", group.rows(), group.leading(), dtype};
}

/// A group in 8 bits for its forward product, and its margins; factors of int8 codes last.
inline std::vector<BaseBuffer> coded_buffers(const MatrixGroup& group, int64_t layer, Group g, at::ScalarType dtype,
                                             spec::Codes codes) {
    std::vector<BaseBuffer> buffers{{layer, g, " W codes", group.n, group.k, ops::type_of(codes)},
                                    {layer, g, " W scales", group.n, 1, at::kFloat},
                                    {layer, g, " A", group.r, group.k, dtype},
                                    {layer, g, " sB", group.n, group.r, dtype}};
    if (codes == spec::Codes::int8) buffers.push_back({layer, g, " W factors", group.k, 1, at::kBFloat16});
    return buffers;
}

/// The same of its transpose, for dx.
inline std::vector<BaseBuffer> transpose_buffers(const MatrixGroup& group, int64_t layer, Group g, at::ScalarType dtype,
                                                 spec::Codes codes) {
    std::vector<BaseBuffer> buffers{{layer, g, " W^T codes", group.k, group.n, ops::type_of(codes)},
                                    {layer, g, " W^T scales", group.k, 1, at::kFloat},
                                    {layer, g, " A^T", group.k, group.r, dtype}};
    if (codes == spec::Codes::int8) buffers.push_back({layer, g, " W^T factors", group.n, 1, at::kBFloat16});
    return buffers;
}

inline std::string image_name(int64_t layer) {
    return cat("layer ", layer, " base");
}
inline std::string image_slot_name(int slot) {
    return cat("layers' slot ", slot);
}
inline std::string part_name(const std::string& tensor, const char* part) {
    return tensor + " " + part;
}
inline std::string bias_name(int64_t layer, Group g) {
    return cat("bias ", layer, " ", name_of(g));
}
inline constexpr const char* disk_buffers_name = "disk buffers";
inline constexpr const char* nested_offset_part = "nested offset";
inline constexpr const char* untied_head_name = "lm_head copy";

}  // namespace unsloth::weights
