// Other parts of a merged model than its text.
#include <algorithm>
#include <map>
#include <set>

#include "formats/families/family.h"
#include "formats/tensor_floats.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/merge.h"

namespace unsloth::formats {
namespace {

/// Of a quantised weight all but what is stored under its own name.
std::vector<const TensorView*> companions_of(const TensorSource& source) {
    std::vector<const TensorView*> parts;
    if (const Quant4Weight* const weight = source.quant4()) parts = weight->parts;
    if (const Int8Weight* const weight = source.int8()) parts = weight->parts();
    std::erase(parts, &source.tensor());
    return parts;
}

}  // namespace

TensorDecl OtherTensor::declare(spec::DType type) const {
    if (as_stored()) return {stored_->name, stored_->dtype, stored_->shape};
    return {stored_->name, type, source_->rule.shape};
}

std::vector<float> OtherTensor::read_f32() const {
    std::vector<float> values(static_cast<std::size_t>(source_->rows() * source_->cols()));
    source_->read_f32(values.data());
    source_->drop();
    if (lora_ == nullptr) return values;
    const std::vector<float> a = floats_of(adapter_->at(tower_lora_a_name(*lora_))),
                             b = floats_of(adapter_->at(tower_lora_b_name(*lora_)));
    add_low_rank(b.data(), a.data(), lora_->lora.r, static_cast<float>(lora_->lora.scale), lora_->n, lora_->k,
                 values.data());
    return values;
}

/// nullptr: it has none.
const spec::TowerLora* MergedModel::adapter_of(const TensorSource& of_tower) const {
    if (adapter_ == nullptr) return nullptr;
    const std::string& name = of_tower.rule.hf_name;
    const auto adapted = std::ranges::find_if(adapter_->tower, [&](const spec::TowerLora& linear) {
        const std::string weight = linear.name() + ".weight";  // alone, or below another module
        return name == weight || name.ends_with("." + weight);
    });
    return adapted == adapter_->tower.end() ? nullptr : &*adapted;
}

bool MergedModel::stays_in_4bit(const TensorSource& of_tower, bool keeps_4bit) const {
    return keeps_4bit && of_tower.quant4() != nullptr && adapter_of(of_tower) == nullptr;
}

std::vector<OtherTensor> MergedModel::others(bool keeps_4bit) const {
    std::map<std::string, const TensorSource*> computed;
    std::set<std::string> left_out;
    for (const TensorSource& source : base_.tensors.vision) {
        if (stays_in_4bit(source, keeps_4bit)) continue;
        for (const TensorView* const companion : companions_of(source)) left_out.insert(companion->name);
        if (source.plain() == nullptr || adapter_of(source) != nullptr) computed.emplace(source.rule.hf_name, &source);
    }
    std::vector<OtherTensor> all;
    for (const TensorView* const stored : base_.tensors.others) {
        if (left_out.contains(stored->name)) continue;
        OtherTensor& other = all.emplace_back();
        other.stored_ = stored;
        const auto found = computed.find(stored->name);
        if (const bool read = !base_.tensors.vision.empty();
            !read && (stored->dtype == spec::DType::u8 || stored->dtype == spec::DType::i8))
            throw Error("model.unsupported",
                        cat(stored->name, ": is quantised, and a part of the model that is written as it is"),
                        "Merge into the 16-bit model.");
        if (found == computed.end()) continue;
        other.source_ = found->second;
        other.lora_ = adapter_of(*found->second);
        if (other.lora_ != nullptr) other.adapter_ = &adapter_->file;
    }
    return all;
}

std::vector<std::string> MergedModel::plain_tower_modules(bool keeps_4bit) const {
    std::vector<std::string> plain;
    std::size_t linears = 0;
    for (const TensorSource& source : base_.tensors.vision) {
        linears += source.rule.may_be_quantised ? 1 : 0;
        const std::string& name = source.rule.hf_name;
        if (source.rule.may_be_quantised && !stays_in_4bit(source, keeps_4bit))
            plain.push_back(name.substr(0, name.rfind('.')));
    }
    return linears > 0 && plain.size() == linears ? tower_modules(*spec_.vision) : plain;
}

}  // namespace unsloth::formats
