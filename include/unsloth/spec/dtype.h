// Element types: names as safetensors, config.json and the options spell them. C++17, no dependency.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unsloth::spec {

enum class DType : uint8_t { f32, bf16, f16, f64, i64, i32, i16, i8, u8, boolean, f8_e4m3, f8_e5m2 };

/// Bytes an element takes.
constexpr std::size_t size_of(DType type) {
    switch (type) {
        case DType::f64:
        case DType::i64:
            return 8;
        case DType::f32:
        case DType::i32:
            return 4;
        case DType::bf16:
        case DType::f16:
        case DType::i16:
            return 2;
        default:
            return 1;
    }
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
    }
    return "?";
}

}  // namespace unsloth::spec
