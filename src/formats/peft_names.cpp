#include "formats/peft_names.h"

#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::formats {

void take_older_names(SafetensorsFile& file, const spec::ModelSpec& model) {
    if (model.part_of.empty() || model.part_names == spec::PartNames::before) return;
    constexpr std::string_view path = "base_model.model.model.";
    const auto is_older = [&](std::string_view name) {
        if (!name.starts_with(path)) return false;
        const std::string_view below = name.substr(path.size());
        return below.starts_with("layers.") || below.starts_with("embed_tokens.");
    };
    std::vector<TensorBlob> made;
    for (const TensorView& tensor : file.tensors())
        if (is_older(tensor.name))
            made.push_back({{cat(path, model.stem(), std::string_view(tensor.name).substr(path.size())), tensor.dtype,
                             tensor.shape},
                            {tensor.data.begin(), tensor.data.end()}});
    if (!made.empty()) file.replace(is_older, std::move(made));
}

}  // namespace unsloth::formats
