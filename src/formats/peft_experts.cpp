#include "formats/peft_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

using spec::Projection;

bool is_of_single_expert(const std::string& name) {
    constexpr std::string_view path = ".mlp.experts.";
    const std::size_t at = name.find(path), after = at + path.size();
    return at != std::string::npos && after < name.size() && name[after] >= '0' && name[after] <= '9';
}

/// Of a layer's experts' tensor the parts that the adapter has, in the order of their rows.
struct Joined {
    spec::LinearId id;
    std::vector<Projection> parts;
    spec::LoraModule module = {};  ///< of the whole
};

[[noreturn]] void refuse_adapter(const SafetensorsFile& file, const std::string& what) {
    throw Error("adapter.unsupported", cat(file.path().string(), ": ", what),
                "In Python: PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload().save_pretrained(OUT), with the "
                "versions that trained it; then name OUT as model.path.");
}

std::string layer_path(const spec::ModelSpec& model, int layer) {
    return cat("model.", model.stem(), "layers.", layer, ".");
}

class ExpertJoiner {
  public:
    ExpertJoiner(PeftConfig& config, SafetensorsFile& file, const spec::ModelSpec& model)
        : lora_(config.lora), file_(file), model_(model) {}

    void join() {
        if (lora_.use_dora) refuse_adapter(file_, "experts have no DoRA here");
        find();
        std::vector<TensorBlob> made;
        for (Joined& joined : joined_) {
            measure(joined);
            const bool within = joined.id.projection == Projection::experts_gate_up && has_down(joined.id.layer);
            made.push_back(join_a(joined, lora_a_name(joined.id, model_.stem(), within)));
            made.push_back(join_b(joined, lora_b_name(joined.id, model_.stem(), within)));
        }
        name_targets();
        name_ranks();
        lora_.lora_dropout = 0;  // of adapters of parameters there is none; what the adapter computes has none either
        file_.replace(is_of_single_expert, std::move(made));
    }

  private:
    int64_t experts() const { return model_.experts->count; }

    const TensorView* find_part(int layer, Projection p, int expert, const char* which) const {
        return file_.find(cat("base_model.model.", layer_path(model_, layer), spec::path_of({layer, p, expert}), ".",
                              which, ".weight"));
    }
    /// In a type and a shape that can be joined.
    const TensorView& part(int layer, Projection p, int expert, const char* which,
                           const std::vector<int64_t>& shape) const {
        const TensorView* const tensor = find_part(layer, p, expert, which);
        if (tensor == nullptr)
            throw Error("checkpoint.missing-tensor",
                        cat(file_.path().string(), ": expert ", expert, " of layer ", layer, " has no ", which, " of ",
                            name_of(p), ", and other experts have"));
        const TensorView& first = *find_part(layer, p, 0, "lora_A");
        if (tensor->shape != shape || tensor->dtype != first.dtype ||
            (tensor->dtype != spec::DType::f32 && tensor->dtype != spec::DType::bf16 &&
             tensor->dtype != spec::DType::f16))
            throw Error("checkpoint.wrong-tensors",
                        cat(file_.path().string(), ": ", tensor->name, ": expected F32, BF16 or F16 ",
                            shape_text(shape), ", of one type in all experts, found ", safetensors_name(tensor->dtype),
                            " ", shape_text(tensor->shape)));
        return *tensor;
    }

    bool has_down(int layer) const {
        return std::ranges::any_of(joined_, [&](const Joined& joined) {
            return joined.id.layer == layer && joined.id.projection == Projection::experts_down;
        });
    }

    /// Which layers have adapters of which matrices: the first expert's say so, and part() that all have them.
    void find() {
        for (int layer = 0; layer < static_cast<int>(model_.num_layers); ++layer) {
            if (!model_.has_experts(layer)) continue;
            const auto has = [&](Projection p) { return find_part(layer, p, 0, "lora_A") != nullptr; };
            Joined gate_up{{layer, Projection::experts_gate_up}, {}}, down{{layer, Projection::experts_down}, {}};
            for (const Projection p : {Projection::gate, Projection::up})
                if (has(p)) gate_up.parts.push_back(p);
            if (has(Projection::down)) down.parts.push_back(Projection::down);
            for (const Joined& joined : {gate_up, down})
                if (!joined.parts.empty()) joined_.push_back(joined);
        }
        if (joined_.empty()) refuse_adapter(file_, "has adapters of experts, but of no first expert of a layer");
    }

    /// The rank and the scale that all parts have, times their number.
    void measure(Joined& joined) const {
        std::vector<std::string> paths;
        for (const Projection p : joined.parts)
            for (int expert = 0; expert < experts(); ++expert)
                paths.push_back(layer_path(model_, joined.id.layer) + spec::path_of({joined.id.layer, p, expert}));
        const std::vector<spec::LoraModule> modules = spec::lora_modules(lora_, paths);
        for (const spec::LoraModule& module : modules)
            if (module.r != modules[0].r || module.scale != modules[0].scale)
                refuse_adapter(file_, cat("rank_pattern or alpha_pattern gives matrices of layer ", joined.id.layer,
                                          "'s experts different ranks or scales"));
        // What the configuration says is the file's, too, before memory is taken for it.
        part(joined.id.layer, joined.parts[0], 0, "lora_A", {modules[0].r, model_.in_features(joined.id.projection)});
        joined.module.r = modules[0].r * static_cast<int64_t>(joined.parts.size());
        joined.module.alpha = modules[0].alpha * static_cast<double>(joined.parts.size());
        if (lora_.use_rslora)
            joined.module.alpha = modules[0].alpha * std::sqrt(static_cast<double>(joined.parts.size()));
    }

    int64_t rank_of_part(const Joined& joined) const {
        return joined.module.r / static_cast<int64_t>(joined.parts.size());
    }
    TensorBlob make_blob(const Joined& joined, const std::string& name, std::vector<int64_t> shape) const {
        TensorBlob blob{{name, find_part(joined.id.layer, joined.parts[0], 0, "lora_A")->dtype, std::move(shape)}, {}};
        blob.data.resize(blob.decl.bytes());  // zeros of any of the types
        return blob;
    }

    /// [E R, K]: each expert's rows, in which each part's r follow one another.
    TensorBlob join_a(const Joined& joined, const std::string& name) const {
        const int64_t r = rank_of_part(joined), k = model_.in_features(joined.id.projection);
        TensorBlob blob = make_blob(joined, name, {experts() * joined.module.r, k});
        std::byte* to = blob.data.data();
        for (int expert = 0; expert < experts(); ++expert)
            for (const Projection p : joined.parts) {
                const TensorView& a = part(joined.id.layer, p, expert, "lora_A", {r, k});
                std::memcpy(to, a.data.data(), a.data.size());
                to += a.data.size();
            }
        return blob;
    }

    /// [N, R E]: of each row the ranks, of each rank the experts. A part has its own rows, and zeros in the others'.
    TensorBlob join_b(const Joined& joined, const std::string& name) const {
        const int64_t r = rank_of_part(joined), columns = joined.module.r * experts();
        TensorBlob blob = make_blob(joined, name, {model_.out_features(joined.id.projection), columns});
        const std::size_t item = spec::size_of(blob.decl.dtype);
        for (std::size_t i = 0; i < joined.parts.size(); ++i) {
            const Projection p = joined.parts[i];
            const int64_t rows = model_.out_features({joined.id.layer, p, 0}),
                          first_row = p == Projection::up ? rows : 0, first_rank = static_cast<int64_t>(i) * r;
            for (int expert = 0; expert < experts(); ++expert) {
                const std::byte* from = part(joined.id.layer, p, expert, "lora_B", {rows, r}).data.data();
                for (int64_t row = 0; row < rows; ++row)
                    for (int64_t j = 0; j < r; ++j, from += item)
                        std::memcpy(blob.data.data() + static_cast<std::size_t>((first_row + row) * columns +
                                                                                (first_rank + j) * experts() + expert) *
                                                           item,
                                    from, item);
            }
        }
        return blob;
    }

    /// target_parameters name the experts; of target_modules the layers without experts keep theirs.
    void name_targets() {
        const bool has_dense = !std::ranges::all_of(model_.layers, &spec::LayerSpec::experts);
        if (!lora_.target_is_regex) {
            std::vector<std::string> kept;
            for (const std::string& target : lora_.target_modules) {
                const bool of_mlp = target == name_of(Projection::gate) || target == name_of(Projection::up) ||
                                    target == name_of(Projection::down);
                const bool of_experts = cat(".", target).find(".experts.") != std::string::npos;
                if (!of_mlp && !of_experts) kept.push_back(target);
                if (of_mlp && has_dense) kept.push_back(cat("mlp.", target));
            }
            lora_.target_modules = std::move(kept);
        }
        for (const Projection p : {Projection::experts_gate_up, Projection::experts_down}) {
            std::vector<std::string> named;
            int64_t sparse = 0;
            for (int layer = 0; layer < static_cast<int>(model_.num_layers); ++layer) {
                sparse += model_.has_experts(layer) ? 1 : 0;
                const bool has = std::ranges::any_of(
                    joined_, [&](const Joined& joined) { return joined.id == spec::LinearId{layer, p}; });
                if (has) named.push_back(cat("layers.", layer, ".", path_of(p)));
            }
            if (static_cast<int64_t>(named.size()) == sparse) named = {std::string(path_of(p))};
            lora_.target_parameters.insert(lora_.target_parameters.end(), named.begin(), named.end());
        }
        if (!lora_.layers_to_transform.empty()) name_modules();
    }

    /// Full paths in the place of layers_to_transform, which would count for target_parameters too.
    void name_modules() {
        spec::LoraSpec modules = lora_;
        modules.target_parameters.clear();
        if (!modules.target_modules.empty()) {
            lora_.target_modules.clear();
            const auto layers = spec::resolve_lora(modules, model_);
            for (std::size_t layer = 0; layer < layers.size(); ++layer)
                for (const auto& [projection, module] : layers[layer])
                    lora_.target_modules.push_back(layer_path(model_, static_cast<int>(layer)) +
                                                   std::string(path_of(projection)));
        }
        lora_.layers_to_transform.clear();
    }

    /// Where the patterns do not give the joined adapters their rank and alpha already, keys before them do.
    void name_ranks() {
        std::vector<std::string> paths;
        for (const Joined& joined : joined_)
            paths.push_back(layer_path(model_, joined.id.layer) + std::string(path_of(joined.id.projection)));
        const std::vector<spec::LoraModule> given = spec::lora_modules(lora_, paths);
        std::vector<std::pair<std::string, int64_t>> ranks;
        std::vector<std::pair<std::string, double>> alphas;
        for (std::size_t i = 0; i < joined_.size(); ++i) {
            const Joined& joined = joined_[i];
            const bool alike = std::ranges::all_of(joined_, [&](const Joined& other) {
                return other.id.projection != joined.id.projection ||
                       (other.module.r == joined.module.r && other.module.alpha == joined.module.alpha);
            });
            std::string key = alike ? std::string(path_of(joined.id.projection))
                                    : cat("layers.", joined.id.layer, ".", path_of(joined.id.projection));
            for (std::size_t dot = 0; (dot = key.find('.', dot)) != std::string::npos; dot += 2)
                key.insert(dot, 1, '\\');
            const auto add = [&](auto& pattern, auto value, auto there) {
                const bool known = std::ranges::any_of(pattern, [&](const auto& entry) { return entry.first == key; });
                if (value != there && !known) pattern.emplace_back(key, value);
            };
            add(ranks, joined.module.r, given[i].r);
            add(alphas, joined.module.alpha, given[i].alpha);
        }
        lora_.rank_pattern.insert(lora_.rank_pattern.begin(), ranks.begin(), ranks.end());
        lora_.alpha_pattern.insert(lora_.alpha_pattern.begin(), alphas.begin(), alphas.end());
    }

    spec::LoraSpec& lora_;
    SafetensorsFile& file_;
    const spec::ModelSpec& model_;
    std::vector<Joined> joined_;
};

}  // namespace

void join_experts(PeftConfig& config, SafetensorsFile& file, const spec::ModelSpec& model) {
    if (!model.experts) return;
    bool of_experts = false;
    for (const TensorView& tensor : file.tensors()) {
        if (tensor.name.ends_with(".mlp.gate.lora_A.weight"))
            refuse_adapter(file, cat("adapts a router (", tensor.name, "), and routers are frozen here"));
        of_experts = of_experts || is_of_single_expert(tensor.name);
    }
    if (of_experts) ExpertJoiner(config, file, model).join();
}

}  // namespace unsloth::formats
