// Which of the products by a frozen base have 8-bit operands (model.compute_dtype), and what these are.
#pragma once

#include <cstdint>

namespace unsloth::spec {

/// Those whose operands are codes; of a group they are a forward product and dx. In e4m3 dx alone or both of them, in
/// int8 both.
enum class CodedProducts : uint8_t { none, dx, both, int8 };

/// What replaces 16-bit operands (ops/coded_rows.h).
enum class Codes : uint8_t { none, e4m3, int8 };

constexpr Codes forward_codes(CodedProducts products) {
    return products == CodedProducts::int8 ? Codes::int8 : products == CodedProducts::both ? Codes::e4m3 : Codes::none;
}
constexpr Codes dx_codes(CodedProducts products) {
    return products == CodedProducts::int8 ? Codes::int8 : products == CodedProducts::none ? Codes::none : Codes::e4m3;
}
/// lm_head's dx: most of a row of a softmax' gradient is small compared with its largest, which int8 values do not
/// hold, and e4m3 values of its weights are further off than all int8 GEMMs together (docs/log.md, 2026-11-24).
constexpr Codes head_dx_codes(CodedProducts products) {
    return products == CodedProducts::int8 ? Codes::none : dx_codes(products);
}
constexpr bool forward_coded(CodedProducts products) {
    return forward_codes(products) != Codes::none;
}
constexpr bool dx_coded(CodedProducts products) {
    return dx_codes(products) != Codes::none;
}
/// Whether layers have quantized values, which stay on the device for the whole run.
constexpr bool any(CodedProducts products) {
    return products != CodedProducts::none;
}
/// The option's words.
constexpr const char* name_of(CodedProducts products) {
    constexpr const char* names[] = {"auto", "fp8_backward", "fp8_both", "int8"};
    return names[static_cast<int>(products)];
}
/// The rest of a sentence that name_of() begins.
constexpr const char* why_not_dora(CodedProducts products) {
    return forward_coded(products) ? "holds the base as codes, whose rows have other norms than DoRA's magnitudes "
                                     "were made for"
                                   : "has no codes of gradients that DoRA's magnitudes scale";
}

}  // namespace unsloth::spec
