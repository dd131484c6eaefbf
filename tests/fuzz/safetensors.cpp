// A safetensors file: its header, its tensors, and what `inspect` finds in a model folder that holds it.
// parser: src/formats/safetensors.cpp src/formats/inspect*
// seeds: tests/golden/formats/reduced tests/golden/formats/adapters/patterns
// options: -max_len=65536 -dict=tests/fuzz/json.dict
#include "fuzz/safetensors_header.h"
#include "unsloth/formats/inspect.h"

namespace {

struct ModelFolder : unsloth::fuzz::Folder {
    ModelFolder() {
        std::filesystem::copy_file(unsloth::fuzz::golden("formats/configs/tiny_llama.json"), path() / "config.json");
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const ModelFolder folder;
    const auto path = folder.write("model.safetensors", fuzz::text_of(data, size));
    fuzz::accepts([&] {
        const formats::SafetensorsFile file(path);
        std::size_t bytes = 0;
        for (const formats::TensorView& tensor : file.tensors()) {
            fuzz::require(&file.at(tensor.name) == &tensor, "a tensor is not found under its name");
            fuzz::require(
                static_cast<std::size_t>(tensor.elements()) * spec::bits_of(tensor.dtype) == 8 * tensor.data.size(),
                "a tensor's size is not that of its elements");
            unsigned sum = 0;
            for (const std::byte value : tensor.data) sum += std::to_integer<unsigned>(value);
            fuzz::require(sum <= 255 * tensor.data.size(), "bytes");  // they are there to be read
            bytes += tensor.data.size();
            tensor.drop();
        }
        fuzz::require(bytes < file.size(), "tensors overlap");
    });
    const formats::Inspection inspection = formats::inspect_path(folder.path().string());
    fuzz::require(!formats::inspect_text(inspection).empty() && !formats::inspect_json(inspection).empty(),
                  "nothing was printed");
    return 0;
}
