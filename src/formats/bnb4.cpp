#include "unsloth/formats/bnb4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/quant4_host.h"

namespace unsloth::formats {
namespace {

constexpr std::array<std::string_view, 4> companion_suffixes = {".absmax", ".quant_map", ".nested_absmax",
                                                                ".nested_quant_map"};
constexpr std::array<std::string_view, 2> state_suffixes = {".quant_state.bitsandbytes__nf4",
                                                            ".quant_state.bitsandbytes__fp4"};

/// What the JSON text of a quant_state says.
struct QuantState {
    spec::DType dtype = spec::DType::bf16;
    int64_t rows = 0, cols = 0;
    bool nested = false;
    float nested_offset = 0.0F;
};

void read_nested(const JsonReader& json, QuantState& state) {
    state.nested = json.has("nested_offset") || json.has("nested_blocksize") || json.has("nested_dtype");
    if (!state.nested) return;
    if (json["nested_blocksize"].integer() != spec::quant4_nested_block) json["nested_blocksize"].refuse("256");
    if (json.string("nested_dtype") != "float32") json["nested_dtype"].refuse("\"float32\"");
    const auto offset = json.number("nested_offset");
    if (!offset || !std::isfinite(static_cast<float>(*offset))) json["nested_offset"].refuse("a finite number");
    state.nested_offset = static_cast<float>(*offset);
}

QuantState read_state(const TensorView& tensor, Quant4Type type) {
    const std::string source = cat(tensor.file->path().string(), ": tensor '", tensor.name, "'");
    if (tensor.dtype != spec::DType::u8)
        throw Error("checkpoint.bad-quantization",
                    cat(source, ": expected U8, found ", safetensors_name(tensor.dtype)));
    const std::string_view text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    const auto parsed = parse_json<OrderedJson>(text, source);
    const JsonReader json(parsed, source);
    if (json.string("quant_type") != name_of(type)) json["quant_type"].refuse(cat('"', name_of(type), '"'));
    if (json["blocksize"].integer() != spec::quant4_block)
        json["blocksize"].refuse("64 (other block sizes are not supported)");
    const auto shape = json.integers("shape");
    constexpr int64_t largest = int64_t{1} << 31;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > largest || shape[1] > largest)
        json["shape"].refuse("two sizes from 1 to 2^31");
    QuantState state;
    state.rows = shape[0];
    state.cols = shape[1];
    const auto dtype = json.string("dtype");
    const auto known = {spec::DType::bf16, spec::DType::f16, spec::DType::f32};
    const auto it =
        std::find_if(known.begin(), known.end(), [&](spec::DType candidate) { return dtype == name_of(candidate); });
    if (it == known.end()) json["dtype"].refuse("bfloat16, float16 or float32");
    state.dtype = *it;
    read_nested(json, state);
    return state;
}

/// Collects a weight's parts from a checkpoint, each with its type and size checked.
class PartReader {
  public:
    PartReader(const Checkpoint& checkpoint, const std::string& name, Quant4Weight& weight)
        : checkpoint_(checkpoint),
          name_(name),
          weight_(weight),
          copies_(std::make_shared<std::vector<std::vector<float>>>()) {
        copies_->reserve(companion_suffixes.size());  // pointers into it must stay
    }

    const TensorView& part(std::string_view suffix) {
        const TensorView* const tensor = checkpoint_.find(name_ + std::string(suffix));
        if (tensor == nullptr)
            throw Error("checkpoint.missing-tensor", cat(checkpoint_.folder().string(), ": tensor '", name_, suffix,
                                                         "' of a 4-bit weight is missing"));
        weight_.parts.push_back(tensor);
        return *tensor;
    }

    const TensorView& vector(std::string_view suffix, spec::DType dtype, int64_t length) {
        const TensorView& tensor = part(suffix);
        if (tensor.dtype != dtype || tensor.shape != std::vector<int64_t>{length})
            throw Error(
                "checkpoint.bad-quantization",
                cat(tensor.file->path().string(), ": tensor '", tensor.name, "': expected ", safetensors_name(dtype),
                    " [", length, "], found ", safetensors_name(tensor.dtype), " ", shape_text(tensor.shape)));
        return tensor;
    }

    const float* floats(std::string_view suffix, int64_t length) {
        const TensorView& tensor = vector(suffix, spec::DType::f32, length);
        if (tensor.is_aligned(alignof(float))) return reinterpret_cast<const float*>(tensor.data.data());
        auto& copy = copies_->emplace_back(static_cast<std::size_t>(length));
        std::memcpy(copy.data(), tensor.data.data(), tensor.data.size());
        return copy.data();
    }

    const float* finite_table(std::string_view suffix, int64_t length) {
        const float* const table = floats(suffix, length);
        if (!std::all_of(table, table + length, [](float value) { return std::isfinite(value); }))
            throw Error("checkpoint.not-finite", cat(checkpoint_.folder().string(), ": tensor '", name_, suffix,
                                                     "' holds a value that is not finite"));
        return table;
    }

    void keep_copies() { weight_.copies = copies_; }

  private:
    const Checkpoint& checkpoint_;
    const std::string& name_;
    Quant4Weight& weight_;
    std::shared_ptr<std::vector<std::vector<float>>> copies_;
};

/// The packed codes: bytes, or the same bytes under a floating type (bnb_4bit_quant_storage).
void check_packed(const TensorView& packed, const spec::Quant4View& view) {
    const std::string where = cat(packed.file->path().string(), ": tensor '", packed.name, "'");
    if (packed.dtype != spec::DType::u8 && !spec::is_floating(packed.dtype))
        throw Error("checkpoint.bad-quantization",
                    cat(where, ": 4-bit codes are in U8, BF16, F16 or F32, not in ", safetensors_name(packed.dtype)));
    const auto bytes = static_cast<std::size_t>((view.elements() + 1) / 2);
    const bool is_column =
        std::count_if(packed.shape.begin(), packed.shape.end(), [](int64_t size) { return size != 1; }) <= 1;
    if (packed.data.size() != bytes || !is_column)
        throw Error("checkpoint.bad-quantization",
                    cat(where, ": a 4-bit weight ", shape_text({view.rows, view.cols}), " takes ", bytes,
                        " bytes in one column, found ", safetensors_name(packed.dtype), " ", shape_text(packed.shape)));
}

}  // namespace

std::size_t Quant4Weight::stored_bytes() const {
    std::size_t bytes = 0;
    for (const TensorView* part : parts) bytes += part->data.size();
    return bytes;
}

bool is_quant4_companion(const std::string& tensor_name, std::string* weight_name) {
    const auto has_suffix = [&](std::string_view suffix) {
        if (!tensor_name.ends_with(suffix)) return false;
        if (weight_name != nullptr) *weight_name = tensor_name.substr(0, tensor_name.size() - suffix.size());
        return true;
    };
    return std::any_of(companion_suffixes.begin(), companion_suffixes.end(), has_suffix) ||
           std::any_of(state_suffixes.begin(), state_suffixes.end(), has_suffix);
}

std::optional<Quant4Weight> find_quant4(const Checkpoint& checkpoint, const std::string& weight_name) {
    const TensorView* const nf4 = checkpoint.find(weight_name + std::string(state_suffixes[0]));
    const TensorView* const fp4 = checkpoint.find(weight_name + std::string(state_suffixes[1]));
    if (nf4 == nullptr && fp4 == nullptr) return std::nullopt;
    if (nf4 != nullptr && fp4 != nullptr)
        throw Error("checkpoint.bad-quantization", cat(checkpoint.folder().string(), ": tensor '", weight_name,
                                                       "' has both an NF4 and an FP4 quant_state"));
    Quant4Weight weight;
    weight.type = nf4 != nullptr ? Quant4Type::nf4 : Quant4Type::fp4;
    const QuantState state = read_state(nf4 != nullptr ? *nf4 : *fp4, weight.type);
    weight.dtype = state.dtype;
    spec::Quant4View& view = weight.view;
    view.rows = state.rows;
    view.cols = state.cols;

    PartReader reader(checkpoint, weight_name, weight);
    const TensorView& packed = reader.part("");
    check_packed(packed, view);
    view.packed = reinterpret_cast<const uint8_t*>(packed.data.data());
    view.code = reader.finite_table(".quant_map", 16);
    if (state.nested) {
        view.absmax_u8 =
            reinterpret_cast<const uint8_t*>(reader.vector(".absmax", spec::DType::u8, view.blocks()).data.data());
        view.nested_map = reader.finite_table(".nested_quant_map", 256);
        view.nested_absmax = reader.finite_table(
            ".nested_absmax", (view.blocks() + spec::quant4_nested_block - 1) / spec::quant4_nested_block);
        view.nested_offset = state.nested_offset;
    } else {
        view.absmax_f32 = reader.floats(".absmax", view.blocks());
    }
    weight.parts.push_back(nf4 != nullptr ? nf4 : fp4);
    reader.keep_copies();
    return weight;
}

void dequantize_rows(const spec::Quant4View& weight, int64_t row_begin, int64_t row_end, float* out) {
    UNSLOTH_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= weight.rows, "rows ", row_begin, " to ",
                  row_end);
    spec::dequantize_4bit_range(weight, row_begin * weight.cols, row_end * weight.cols, out,
                                [](float value) { return value; });
}

void dequantize_absmax(const spec::Quant4View& weight, float* out) {
    for (int64_t block = 0; block < weight.blocks(); ++block) out[block] = spec::block_absmax(weight, block);
}

}  // namespace unsloth::formats
