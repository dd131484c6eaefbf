#include <algorithm>
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

/// One matrix of all experts of a layer, [E, N, K]; `first` is that of expert 0.
Item experts_item(const ModelTensors& tensors, const TensorSource& first, int64_t experts) {
    Item item;
    const spec::LinearId id = first.rule.id;
    item.decl = {gguf_tensor_name(first.rule), GgmlType::f32, {experts, first.rows(), first.cols()}};
    item.source = cat(first.rule.hf_name, " and those of the other experts");
    const auto of = [&tensors, id](int64_t expert) -> const TensorSource& {
        return tensors.linear({id.layer, id.projection, static_cast<int>(expert)});
    };
    item.drop = [of, experts] {
        for (int64_t e = 0; e < experts; ++e) of(e).drop();
    };
    item.read = [of, rows = first.rows(), cols = first.cols()](int64_t begin, int64_t end, float* out) {
        for (int64_t next = 0; begin < end; begin = next) {
            const int64_t expert = begin / rows, row = begin % rows;
            next = std::min(end, (expert + 1) * rows);
            of(expert).read_f32(row, row + next - begin, out);
            out += (next - begin) * cols;
        }
    };
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

/// Of an adapter of experts: A [E, r, K] as stored, and of B, [N, r E] with the experts innermost, some rows as
/// [E, rows, r].
Item experts_a_item(std::string name, const TensorView& a, int64_t experts) {
    Item item = adapter_item(std::move(name), a);
    item.decl.shape = {experts, a.shape[0] / experts, a.shape[1]};
    return item;
}
Item experts_b_item(std::string name, const TensorView& b, int64_t experts, int64_t first, int64_t rows) {
    Item item;
    const int64_t r = b.shape[1] / experts;
    item.decl = {std::move(name), GgmlType::f32, {experts, rows, r}};
    item.source = b.name;
    item.read = [&b, experts, first, rows, r](int64_t begin, int64_t end, float* out) {
        for (; begin < end; ++begin)
            for (int64_t j = 0; j < r; ++j) {
                const int64_t element = ((first + begin % rows) * r + j) * experts + begin / rows;
                spec::convert_to_f32(
                    b.dtype, b.data.data() + static_cast<std::size_t>(element) * spec::size_of(b.dtype), 1, out++);
            }
    };
    return item;
}

GgmlType adapter_type(GgufFileType file_type) {
    const GgmlType type = base_type(file_type);
    if (info_of(type).block == 1 || type == GgmlType::q8_0) return type;
    throw Error("option.unsupported", "an adapter is written as f32, f16, bf16 or q8_0",
                "Four bits would lose much of what was learned. Merge the adapter into its base to quantise both.");
}

/// Of weights that were on the type's grid before. A file that is not so is removed.
void require_unchanged(const std::filesystem::path& out, const GgufReport& report, GgmlType type) {
    const auto found = report.types.find(std::string(info_of(type).name));
    if (found != report.types.end() && found->second.squared_error == 0) return;
    std::filesystem::remove(out);
    throw Error("export.unsupported",
                cat(out.string(), ": blocks of ", info_of(type).name,
                    " do not stand for the model's values, which its ", "config.json says are on that grid"),
                "The model was changed after merge --grid wrote it: merge again, or name a --type.");
}

/// llama.cpp has gate and up apart: both have the A of what is one here.
std::vector<spec::Projection> parts_of_experts(spec::Projection p) {
    if (p == spec::Projection::experts_down) return {spec::Projection::down};
    return {spec::Projection::gate, spec::Projection::up};
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
        if (source.rule.id.expert > 0) continue;  // the first one's item has all
        items.push_back(source.rule.id.expert == 0 ? experts_item(model.tensors, source, spec.experts->count)
                                                   : model_item(spec, source));
        const bool linear = source.rule.role == spec::TensorRole::linear;
        types.set(items.back(),
                  wanted_type(spec, source.rule, options.others && !linear ? *options.others : options.type));
    }
    types.log_replacements();
    GgufReport report = gguf::write_items(out, metadata, items, options.threads);
    if (options.others) require_unchanged(out, report, base_type(options.type));
    return report;
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
    if (!adapter.tower.empty())
        throw Error("export.unsupported",
                    "the adapter is of the vision tower too (lora.vision), which llama.cpp's adapter files cannot hold",
                    "Merge it into its base.");
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
    const auto add = [&](Item a, Item b, const spec::LoraModule& module) {
        b.factor = static_cast<float>(module.scale * static_cast<double>(module.r) / alpha);
        for (Item* const item : {&a, &b}) {
            types.set(*item, type);
            items.push_back(std::move(*item));
        }
    };
    for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer)
        for (const auto& [projection, module] : adapter.layers[layer]) {
            const spec::LinearId id{static_cast<int>(layer), projection};
            if (is_of_experts(projection)) {
                for (const spec::Projection part : parts_of_experts(projection)) {
                    const spec::LinearId first{id.layer, part, 0};
                    const int64_t experts = spec.experts->count, rows = spec.out_features(first);
                    const std::string name = weight_name(first);
                    add(experts_a_item(name + ".lora_a", adapter.a(id), experts),
                        experts_b_item(name + ".lora_b", adapter.b(id), experts,
                                       part == spec::Projection::up ? rows : 0, rows),
                        module);
                }
                continue;
            }
            const std::string name = weight_name(id);
            Item b = adapter_item(name + ".lora_b", adapter.b(id));
            const bool turned = projection == spec::Projection::q || projection == spec::Projection::k;
            if (gguf::permutes_heads(spec) && turned) b.head_dim = spec.head_dim;
            add(adapter_item(name + ".lora_a", adapter.a(id)), std::move(b), module);
        }
    types.log_replacements();
    return gguf::write_items(out, metadata, items, options.threads);
}

}  // namespace unsloth::formats
