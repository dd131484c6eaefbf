#include <algorithm>
#include <cstring>

#include "formats/plain_tensor.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

/// Whether two tensors hold the same values, whatever their types.
bool are_equal(const TensorView& a, const TensorView& b) {
    if (a.shape != b.shape) return false;
    if (a.dtype == b.dtype) return std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
    if (!is_plain(a) || !is_plain(b)) return false;
    constexpr int64_t piece = int64_t{1} << 16;
    std::vector<float> values_a(piece), values_b(piece);
    const auto values = [](const TensorView& tensor, int64_t begin, int64_t count, float* out) {
        spec::convert_to_f32(tensor.dtype,
                             tensor.data.data() + static_cast<std::size_t>(begin) * spec::size_of(tensor.dtype), count,
                             out);
    };
    for (int64_t begin = 0; begin < a.elements(); begin += piece) {
        const int64_t count = std::min(piece, a.elements() - begin);
        values(a, begin, count, values_a.data());
        values(b, begin, count, values_b.data());
        if (!std::equal(values_a.begin(), values_a.begin() + count, values_b.begin())) return false;
    }
    return true;
}

}  // namespace

spec::ModelSpec model_spec_of(const Checkpoint& checkpoint) {
    constexpr const char* embeddings = "model.embed_tokens.weight";
    spec::ModelSpec named = read_model_spec(checkpoint.folder());
    if (named.part_names == spec::PartNames::within && checkpoint.find(named.stored_name(embeddings)) == nullptr)
        named.part_names = spec::PartNames::none;            // as transformers before 4.52 wrote them
    const bool tiles = named.vision && named.vision->tiles;  // mllama: later ones may write their modules' names
    if (tiles && checkpoint.find(named.stored_name(embeddings)) == nullptr) named.part_names = spec::PartNames::within;
    const TensorView* const embedding = checkpoint.find(named.stored_name(embeddings));
    const TensorView* const head = checkpoint.find(named.stored_name("lm_head.weight"));
    spec::ModelSpec spec = read_model_spec(
        checkpoint.folder(), embedding != nullptr && is_plain(*embedding) ? embedding->dtype : spec::DType::f32);
    spec.part_names = named.part_names;
    if (!spec.tie_word_embeddings || embedding == nullptr || head == nullptr) return spec;
    spec.tie_word_embeddings = are_equal(*embedding, *head);
    embedding->drop();
    head->drop();
    if (!spec.tie_word_embeddings)
        log::warning(checkpoint.folder().string(),
                     ": config.json says tie_word_embeddings, and lm_head.weight holds other values than "
                     "model.embed_tokens.weight: the two are not tied, as in transformers 5");
    return spec;
}

WeightFile WeightFile::open(const std::string& path, const std::string& rope_scaling,
                            const std::filesystem::path& adapter) {
    Checkpoint checkpoint = Checkpoint::open(path);
    spec::ModelSpec spec = model_spec_of(checkpoint);
    if (!rope_scaling.empty() && rope_scaling != "{}") set_rope_scaling(spec, rope_scaling, "rope_scaling");
    auto quantization = read_quantization_config(checkpoint.folder());
    check_quantization_config(quantization, spec, (checkpoint.folder() / "config.json").string());
    ModelTensors tensors = resolve_tensors(checkpoint, spec);
    WeightFile file{std::move(spec), std::move(quantization), std::move(checkpoint), std::move(tensors), nullptr};
    if (!adapter.empty()) file.take_stand_ins(adapter);
    return file;
}

void WeightFile::take_stand_ins(const std::filesystem::path& adapter) {
    Adapter opened = read_adapter(adapter, spec);
    const TensorView* const embedding = opened.stand_in("embed_tokens");
    const TensorView* const head = opened.stand_in("lm_head");
    if (embedding == nullptr && head == nullptr) return;
    if (spec.tie_word_embeddings && embedding != nullptr && head != nullptr && !are_equal(*embedding, *head))
        throw Error("adapter.unsupported",
                    cat(adapter.string(),
                        ": stores an lm_head of other values than its embed_tokens, and the "
                        "model ties the two (tie_word_embeddings)"),
                    "Merge it with PEFT into a model with tie_word_embeddings false, and train that.");
    stand_ins = std::make_shared<const SafetensorsFile>(std::move(opened.file));
    for (const TensorView* tensor : {embedding, head}) {
        if (tensor == nullptr) continue;
        const bool is_head = tensor == head && !spec.tie_word_embeddings;
        tensors.replace(spec.stored_name(is_head ? "lm_head.weight" : "model.embed_tokens.weight"), *tensor);
    }
    log::info(adapter.string(), ": its ", embedding == nullptr ? "lm_head" : "embed_tokens",
              embedding != nullptr && head != nullptr ? " and lm_head replace" : " replaces",
              " the base's, frozen, as PEFT loads them");
}

std::vector<const TensorView*> WeightFile::stand_in_tensors() const {
    std::vector<const TensorView*> found;
    for (const TensorSource& source : tensors.all())
        if (const TensorView* const tensor = source.plain();
            stand_ins && tensor != nullptr && tensor->file == &stand_ins->map())
            found.push_back(tensor);
    return found;
}

}  // namespace unsloth::formats
