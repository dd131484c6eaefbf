// Which of the products by a frozen base have 8-bit operands (model.compute_dtype).
#pragma once

#include <cstdint>

namespace unsloth::spec {

/// Those whose operands are e4m3 codes with a scale for each row; of a group they are a forward product and dx.
enum class CodedProducts : uint8_t { none, dx, both };

constexpr bool forward_coded(CodedProducts products) {
    return products == CodedProducts::both;
}
constexpr bool dx_coded(CodedProducts products) {
    return products != CodedProducts::none;
}
/// Whether layers have codes, which lie on the device for the whole run.
constexpr bool any(CodedProducts products) {
    return products != CodedProducts::none;
}
/// The option's words.
constexpr const char* name_of(CodedProducts products) {
    constexpr const char* names[] = {"auto", "fp8_backward", "fp8_both"};
    return names[static_cast<int>(products)];
}
/// The rest of a sentence that name_of() begins.
constexpr const char* why_not_dora(CodedProducts products) {
    return forward_coded(products) ? "holds the base as codes, whose rows have other norms than DoRA's magnitudes "
                                     "were made for"
                                   : "has no codes of gradients that DoRA's magnitudes scale";
}

}  // namespace unsloth::spec
