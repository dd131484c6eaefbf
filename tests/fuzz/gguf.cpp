// A GGUF file: its fields, its tensors, the values of those types that can be dequantised, and what `inspect` says of
// it.
// options: -max_len=8192 -dict=tests/fuzz/gguf.dict
// parser: src/formats/gguf/* src/formats/inspect*
#include <algorithm>

#include "fuzz/support.h"
#include "unsloth/formats/gguf.h"
#include "unsloth/formats/inspect.h"

namespace {

using namespace unsloth;

void look_at(const formats::GgufField& field) {
    const auto integer = field.integer();
    fuzz::require(!integer || field.number().has_value(), "an integer that is no number");
    const auto text = field.text();
    fuzz::require(text.has_value() == (field.type == formats::GgufValueType::string), "only strings are texts");
    const auto texts = field.texts();
    const bool strings = field.type == formats::GgufValueType::array && field.element == formats::GgufValueType::string;
    fuzz::require(texts.size() == (strings ? field.count : 0), "an array of strings has not as many as it says");
    fuzz::require(field.summary().size() < 1000, "a summary without end");
}

void look_at(const formats::GgufTensor& tensor) {
    const auto blocks = tensor.elements() / tensor.type->block;
    fuzz::require(static_cast<std::size_t>(blocks * tensor.type->bytes) == tensor.data.size(),
                  "a tensor's size is not that of its elements");
    constexpr formats::GgmlType readable[] = {formats::GgmlType::f32,  formats::GgmlType::f16,  formats::GgmlType::q4_0,
                                              formats::GgmlType::q5_0, formats::GgmlType::q5_1, formats::GgmlType::q8_0,
                                              formats::GgmlType::q4_k, formats::GgmlType::q5_k, formats::GgmlType::q6_k,
                                              formats::GgmlType::bf16};
    const auto type = std::ranges::find_if(
        readable, [&](formats::GgmlType t) { return static_cast<uint32_t>(t) == tensor.type->id; });
    if (type == std::end(readable) || tensor.elements() > (1 << 16)) return;
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    formats::dequantize_ggml(*type, tensor.data.data(), tensor.elements(), values.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    static const fuzz::Folder folder;
    const auto path = folder.write("model.gguf", fuzz::text_of(data, size));
    fuzz::accepts([&] {
        const formats::GgufFile file(path);
        for (const formats::GgufField& field : file.fields()) {
            fuzz::require(file.find_field(field.key) == &field, "a field is not found under its key");
            look_at(field);
        }
        for (const formats::GgufTensor& tensor : file.tensors()) {
            fuzz::require(file.find_tensor(tensor.name) == &tensor, "a tensor is not found under its name");
            look_at(tensor);
        }
    });
    const formats::Inspection inspection = formats::inspect_path(path.string());
    fuzz::require(!formats::inspect_text(inspection).empty() && !formats::inspect_json(inspection).empty(),
                  "nothing was printed");
    return 0;
}
