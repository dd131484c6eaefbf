// The JSON text of a bitsandbytes quant_state, beside the other parts of a 4-bit weight [16, 24].
// parser: src/formats/bnb4.cpp
// options: -max_len=2048 -dict=tests/fuzz/json.dict
#include "fuzz/support.h"
#include "unsloth/formats/bnb4.h"

namespace {

using namespace unsloth;

constexpr std::size_t rows = 16, cols = 24, blocks = rows * cols / 64;

formats::TensorBlob floats(const std::string& name, std::size_t count) {
    return {{name, spec::DType::f32, {static_cast<int64_t>(count)}},
            std::vector<std::byte>(count * sizeof(float), std::byte{0x3E})};
}
formats::TensorBlob bytes(const std::string& name, std::vector<int64_t> shape, std::vector<std::byte> data) {
    return {{name, spec::DType::u8, std::move(shape)}, std::move(data)};
}

/// A weight without its quant_state; `nested`: with double quantisation.
void add_parts(std::vector<formats::TensorBlob>& tensors, const std::string& name, bool nested) {
    tensors.push_back(bytes(name, {rows * cols / 2, 1}, std::vector<std::byte>(rows * cols / 2, std::byte{0x5A})));
    tensors.push_back(floats(name + ".quant_map", 16));
    if (!nested) return tensors.push_back(floats(name + ".absmax", blocks));
    tensors.push_back(bytes(name + ".absmax", {blocks}, std::vector<std::byte>(blocks, std::byte{7})));
    tensors.push_back(floats(name + ".nested_absmax", 1));
    tensors.push_back(floats(name + ".nested_quant_map", 256));
}

/// A file of the tensors, without the care (and time) that a real one is written with.
std::string safetensors_of(const std::vector<formats::TensorBlob>& tensors) {
    std::string header, content;
    for (const formats::TensorBlob& tensor : tensors) {
        const std::size_t begin = content.size();
        content.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
        header +=
            cat(header.empty() ? "{" : ",", "\"", tensor.decl.name, "\":{\"dtype\":\"",
                formats::safetensors_name(tensor.decl.dtype), "\",\"shape\":", formats::shape_text(tensor.decl.shape),
                ",\"data_offsets\":[", begin, ",", content.size(), "]}");
    }
    header += "}";
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    static const fuzz::Folder folder;
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    std::vector<formats::TensorBlob> tensors;
    for (const bool nested : {false, true}) {
        for (const char* type : {"nf4", "fp4"}) {
            const std::string name = cat(type, nested ? ".nested" : ".plain");
            add_parts(tensors, name, nested);
            tensors.push_back(bytes(cat(name, ".quant_state.bitsandbytes__", type), {static_cast<int64_t>(size)},
                                    {begin, begin + size}));
        }
    }
    folder.write("model.safetensors", safetensors_of(tensors));
    const formats::Checkpoint checkpoint = formats::Checkpoint::open(folder.path().string());
    for (const char* name : {"nf4.plain", "nf4.nested", "fp4.plain", "fp4.nested"}) {
        fuzz::accepts([&] {
            const auto weight = formats::find_quant4(checkpoint, name);
            fuzz::require(weight.has_value(), "a 4-bit weight is not found");
            std::vector<float> values(static_cast<std::size_t>(weight->view.elements()));
            formats::dequantize_rows(weight->view, 0, weight->view.rows, values.data());
        });
    }
    return 0;
}
