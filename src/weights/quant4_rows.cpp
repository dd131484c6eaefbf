#include "weights/quant4_rows.h"

namespace unsloth::weights {
namespace {

constexpr int64_t table_values = 16 + 256;  // ops::Quant4Tensor::tables

int64_t nested_blocks(const spec::Quant4View& view) {
    return (view.blocks() + spec::quant4_nested_block - 1) / spec::quant4_nested_block;
}

template <class T>
at::Tensor host_array(const T* data, int64_t count, at::ScalarType type) {
    return at::from_blob(const_cast<T*>(data), {count}, type);
}

}  // namespace

void quant4_arrays(const spec::Quant4View& view,
                   const std::function<void(const char* what, at::ScalarType type, int64_t count)>& add) {
    add("packed", at::kByte, (view.elements() + 1) / 2);
    add("absmax", view.nested() ? at::kByte : at::kFloat, view.blocks());
    if (view.nested()) add("nested absmax", at::kFloat, nested_blocks(view));
    add("tables", at::kFloat, table_values);
}

ops::Quant4Tensor quant4_rows(const spec::Quant4View& view,
                              const std::function<at::Tensor(const char* what, const at::Tensor& values)>& put) {
    const int64_t blocks = view.blocks();
    ops::Quant4Tensor stored;
    stored.rows = view.rows;
    stored.cols = view.cols;
    stored.nested_offset = view.nested_offset;
    stored.packed = put("packed", host_array(view.packed, (view.elements() + 1) / 2, at::kByte));
    stored.absmax = put("absmax", view.nested() ? host_array(view.absmax_u8, blocks, at::kByte)
                                                : host_array(view.absmax_f32, blocks, at::kFloat));
    if (view.nested())
        stored.nested_absmax = put("nested absmax", host_array(view.nested_absmax, nested_blocks(view), at::kFloat));
    at::Tensor tables = at::zeros({table_values}, at::kFloat);
    tables.narrow(0, 0, 16).copy_(host_array(view.code, 16, at::kFloat));
    if (view.nested()) tables.narrow(0, 16, 256).copy_(host_array(view.nested_map, 256, at::kFloat));
    stored.tables = put("tables", tables);
    return stored;
}

}  // namespace unsloth::weights
