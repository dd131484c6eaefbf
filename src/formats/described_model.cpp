#include "unsloth/formats/described_model.h"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "formats/experts_layout.h"
#include "formats/vision_rules.h"

namespace unsloth::formats {
namespace {

/// Whether the quantiser takes the matrix: embeddings never, of the rest what is not listed (without a list: lm_head).
bool is_taken(const spec::TensorRule& rule, const QuantizationConfig& quantization) {
    if (!rule.may_be_quantised || rule.role == spec::TensorRole::embed_tokens) return false;
    const std::vector<std::string> skipped =
        quantization.llm_int8_skip_modules.value_or(std::vector<std::string>{"lm_head"});
    return std::none_of(skipped.begin(), skipped.end(), [&](const std::string& module) {
        return rule.hf_name.starts_with(module + ".") || rule.hf_name.find("." + module + ".") != std::string::npos;
    });
}

/// What the sources of the file point to lives as long as the file.
struct Described {
    std::deque<TensorView> views;
    WeightFile file;
};

TensorSource describe(spec::TensorRule rule, spec::DType dtype, const std::optional<QuantizationConfig>& quantization,
                      std::deque<TensorView>& views) {
    static constexpr uint8_t no_scales = 0;  // distinguishes nested scales from plain ones; never read
    TensorView& view = views.emplace_back();
    view.name = rule.hf_name;
    view.dtype = dtype;
    view.shape = rule.shape;
    TensorSource source;
    source.stored = &view;
    const bool taken = quantization && is_taken(rule, *quantization);
    if (taken && quantization->load_in_4bit) {
        view.dtype = spec::DType::u8;
        Quant4Weight weight;
        weight.view.rows = rule.shape[0];
        weight.view.cols = rule.shape[1];
        if (quantization->bnb_4bit_use_double_quant) weight.view.absmax_u8 = &no_scales;
        source.stored = std::move(weight);
    } else if (taken && quantization->quant_method == "mxfp4" && rule.id.expert >= 0) {
        view.dtype = spec::DType::u8;
        source.stored = Mxfp4Weight{.rows = rule.shape[0], .cols = rule.shape[1]};
    } else if (taken && quantization->load_in_8bit) {
        view.dtype = spec::DType::i8;
        source.stored = Int8Weight{.rows = rule.shape[0], .cols = rule.shape[1]};
    }
    source.rule = std::move(rule);
    return source;
}

}  // namespace

std::shared_ptr<const WeightFile> describe_model(spec::ModelSpec spec, std::optional<QuantizationConfig> quantization,
                                                 std::filesystem::path folder) {
    check_quantization_config(quantization, spec, (folder / "config.json").string());
    std::deque<TensorView> views;
    std::vector<TensorSource> sources, vision;
    for (spec::TensorRule& rule : spec::tensor_table(spec)) {
        TensorSource& source = sources.emplace_back(describe(std::move(rule), spec.dtype, quantization, views));
        if (!std::holds_alternative<const TensorView*>(source.stored)) continue;
        if (const auto part = experts_part(spec, source.rule))
            source.stored = StridedTensor{&views.back(), part->first, part->row_stride, part->col_stride, part->last};
    }
    const bool within = spec.stored_name("model.norm.weight").starts_with("model.language_model.");
    for (spec::TensorRule& rule : vision_rules(spec, within)) {
        vision.push_back(describe(std::move(rule), spec.dtype, quantization, views));
        flatten_shape(vision.back().rule.shape);
    }
    const auto described = std::make_shared<Described>(
        Described{std::move(views),
                  {std::move(spec), std::move(quantization), Checkpoint::without_tensors(std::move(folder)),
                   ModelTensors(std::move(sources)), nullptr}});
    described->file.tensors.vision = std::move(vision);
    return {described, &described->file};
}

}  // namespace unsloth::formats
