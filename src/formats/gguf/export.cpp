#include <cmath>
#include <cstring>

#include "formats/gguf/metadata.h"
#include "formats/gguf/stream.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

using gguf::Item;

bool is_query_or_key(const spec::TensorRule& rule) {
    const bool projected = rule.role == spec::TensorRole::linear || rule.role == spec::TensorRole::bias;
    return projected && (rule.id.projection == spec::Projection::q || rule.id.projection == spec::Projection::k);
}

Item model_item(const spec::ModelSpec& spec, const TensorSource& source) {
    Item item;
    item.decl = {gguf_tensor_name(source.rule), GgmlType::f32, source.rule.shape};
    item.source = source.rule.hf_name;
    item.drop = [&source] { source.drop(); };
    item.read = [&source](int64_t begin, int64_t end, float* out) {
        source.read_f32(begin, end, out);
        if (const float offset = source.rule.offset; offset != 0)
            for (int64_t i = 0; i < (end - begin) * source.cols(); ++i) out[i] += offset;
    };
    if (source.rule.role == spec::TensorRole::linear && gguf::permutes_heads(spec) && is_query_or_key(source.rule))
        item.head_dim = spec.head_dim;
    return item;
}

/// The vector `values` in the order that Item::head_dim means for rows.
std::vector<float> in_head_order(const std::vector<float>& values, int64_t head_dim) {
    std::vector<float> ordered(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t d = static_cast<std::size_t>(head_dim), in_head = i % d;
        ordered[i] = values[i - in_head + in_head % 2 * (d / 2) + in_head / 2];
    }
    return ordered;
}

Item vector_item(std::string name, std::string source, std::vector<float> values) {
    Item item;
    item.decl = {std::move(name), GgmlType::f32, {static_cast<int64_t>(values.size())}};
    item.source = std::move(source);
    item.read = [values = std::move(values)](int64_t, int64_t, float* out) {
        std::memcpy(out, values.data(), values.size() * sizeof(float));
    };
    return item;
}

/// A vector is one row: the order of q's and k's biases is made here.
Item bias_item(const spec::ModelSpec& spec, const TensorSource& source) {
    std::vector<float> values(static_cast<std::size_t>(source.cols()));
    source.read_f32(values.data());
    return vector_item(gguf_tensor_name(source.rule), source.rule.hf_name, in_head_order(values, spec.head_dim));
}

/// What every module's scale * r is, if it is the same for all: then alpha can say it, and tensors stay as they are.
double common_alpha(const Adapter& adapter) {
    double common = 0;
    for (const spec::LayerLora& layer : adapter.layers)
        for (const auto& [projection, module] : layer) {
            const double alpha = module.scale * static_cast<double>(module.r);
            if (common == 0) common = alpha;
            if (std::abs(alpha - common) > 1e-12 * common) return adapter.config.lora.lora_alpha;
        }
    return common;
}

Item adapter_item(std::string name, const TensorView& tensor) {
    Item item;
    item.decl = {std::move(name), GgmlType::f32, tensor.shape};
    item.source = tensor.name;
    item.read = [&tensor, cols = tensor.shape.back()](int64_t begin, int64_t end, float* out) {
        const std::size_t row = static_cast<std::size_t>(cols) * spec::size_of(tensor.dtype);
        spec::convert_to_f32(tensor.dtype, tensor.data.data() + static_cast<std::size_t>(begin) * row,
                             (end - begin) * cols, out);
    };
    return item;
}

GgmlType adapter_type(GgufFileType file_type) {
    const GgmlType type = base_type(file_type);
    if (info_of(type).block == 1 || type == GgmlType::q8_0) return type;
    throw Error("option.unsupported", "an adapter is written as f32, f16, bf16 or q8_0",
                "Four bits would lose much of what was learned. Merge the adapter into its base to quantise both.");
}

std::string weight_name(spec::LinearId id) {
    spec::TensorRule rule;
    rule.role = spec::TensorRole::linear;
    rule.id = id;
    return gguf_tensor_name(rule);
}

}  // namespace

GgufReport export_model_gguf(const WeightFile& model, const spec::Vocabulary& vocabulary,
                             const std::filesystem::path& out, const GgufExportOptions& options) {
    const spec::ModelSpec& spec = model.spec;
    gguf::check_expressible(spec);
    GgufMetadata metadata;
    gguf::add_model_fields(spec, options, metadata);
    gguf::add_vocabulary_fields(spec, vocabulary, metadata);

    std::vector<Item> items;
    gguf::TypeSetter types;
    for (auto& [name, values] : gguf::rope_tensors(spec))
        items.push_back(vector_item(name, "rope_scaling", std::move(values)));
    for (const TensorSource& source : model.tensors.all()) {
        if (source.rule.role == spec::TensorRole::bias && gguf::permutes_heads(spec) && is_query_or_key(source.rule)) {
            items.push_back(bias_item(spec, source));
            continue;
        }
        items.push_back(model_item(spec, source));
        types.set(items.back(), wanted_type(spec, source.rule, options.type));
    }
    types.log_replacements();
    return gguf::write_items(out, metadata, items, options.threads);
}

GgufReport export_adapter_gguf(const Adapter& adapter, const spec::ModelSpec& spec, const std::filesystem::path& out,
                               const GgufExportOptions& options) {
    const GgmlType type = adapter_type(options.type);
    if (!adapter.config.lora.modules_to_save.empty())
        throw Error("export.unsupported",
                    "the adapter holds whole modules (modules_to_save), which llama.cpp's adapter files cannot",
                    "Merge it into its base, and export the merged model.");
    adapter.refuse_stand_ins("which llama.cpp's adapter files cannot",
                             "Merge it into its base, and export the merged model.");
    if (adapter.config.lora.use_dora)
        throw Error("export.unsupported",
                    "the adapter is a DoRA, whose magnitudes llama.cpp's adapter files cannot hold",
                    "Merge it into its base, and export the merged model.");
    gguf::check_expressible(spec);
    const double alpha = common_alpha(adapter);
    GgufMetadata metadata;
    metadata.add("general.architecture", gguf::architecture_name(spec));
    metadata.add("general.type", "adapter");
    metadata.add("adapter.type", "lora");
    metadata.add("general.name", options.name);
    metadata.add("adapter.lora.alpha", static_cast<float>(alpha));
    metadata.add("general.quantization_version", gguf::quantization_version);

    std::vector<Item> items;
    gguf::TypeSetter types;
    for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer)
        for (const auto& [projection, module] : adapter.layers[layer]) {
            const spec::LinearId id{static_cast<int>(layer), projection};
            const std::string name = weight_name(id);
            items.push_back(adapter_item(name + ".lora_a", adapter.a(id)));
            types.set(items.back(), type);
            Item b = adapter_item(name + ".lora_b", adapter.b(id));
            const bool turned = projection == spec::Projection::q || projection == spec::Projection::k;
            if (gguf::permutes_heads(spec) && turned) b.head_dim = spec.head_dim;
            b.factor = static_cast<float>(module.scale * static_cast<double>(module.r) / alpha);
            types.set(b, type);
            items.push_back(std::move(b));
        }
    types.log_replacements();
    return gguf::write_items(out, metadata, items, options.threads);
}

}  // namespace unsloth::formats
