// Element types: names as safetensors, config.json and the options spell them. C++17, no dependency.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unsloth::spec {

/// The first twelve are computed with; the rest are types of safetensors files, which are read no further than the
/// header.
enum class DType : uint8_t {
    f32,
    bf16,
    f16,
    f64,
    i64,
    i32,
    i16,
    i8,
    u8,
    boolean,
    f8_e4m3,
    f8_e5m2,
    u64,
    u32,
    u16,
    c64,
    f8_e4m3fnuz,
    f8_e5m2fnuz,
    f8_e8m0,
    f6_e2m3,
    f6_e3m2,
    f4
};

/// Bits an element takes.
constexpr std::size_t bits_of(DType type) {
    switch (type) {
        case DType::f64:
        case DType::i64:
        case DType::u64:
        case DType::c64:
            return 64;
        case DType::f32:
        case DType::i32:
        case DType::u32:
            return 32;
        case DType::bf16:
        case DType::f16:
        case DType::i16:
        case DType::u16:
            return 16;
        case DType::f6_e2m3:
        case DType::f6_e3m2:
            return 6;
        case DType::f4:
            return 4;
        default:
            return 8;
    }
}

/// Bytes an element takes; 0 for types whose elements share bytes.
constexpr std::size_t size_of(DType type) {
    return bits_of(type) / 8;
}

constexpr bool is_floating(DType type) {
    return type == DType::f32 || type == DType::bf16 || type == DType::f16 || type == DType::f64;
}

/// "float32", "bfloat16", "float16", … as transformers and our options say it.
constexpr const char* name_of(DType type) {
    switch (type) {
        case DType::f32:
            return "float32";
        case DType::bf16:
            return "bfloat16";
        case DType::f16:
            return "float16";
        case DType::f64:
            return "float64";
        case DType::i64:
            return "int64";
        case DType::i32:
            return "int32";
        case DType::i16:
            return "int16";
        case DType::i8:
            return "int8";
        case DType::u8:
            return "uint8";
        case DType::boolean:
            return "bool";
        case DType::f8_e4m3:
            return "float8_e4m3fn";
        case DType::f8_e5m2:
            return "float8_e5m2";
        case DType::u64:
            return "uint64";
        case DType::u32:
            return "uint32";
        case DType::u16:
            return "uint16";
        case DType::c64:
            return "complex64";
        case DType::f8_e4m3fnuz:
            return "float8_e4m3fnuz";
        case DType::f8_e5m2fnuz:
            return "float8_e5m2fnuz";
        case DType::f8_e8m0:
            return "float8_e8m0fnu";
        case DType::f6_e2m3:
            return "float6_e2m3fn";
        case DType::f6_e3m2:
            return "float6_e3m2fn";
        case DType::f4:
            return "float4_e2m1fn_x2";
    }
    return "?";
}

}  // namespace unsloth::spec
