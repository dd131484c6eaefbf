// Which adapters sit where. The names and their meaning are PEFT's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::spec {

/// Which linears of a tower over images get an adapter.
enum class TowerTargets : uint8_t {
    none,
    named,  ///< those that target_modules names, which PEFT matches in the whole model: of an adapter that was read
    all,    ///< every one (lora.vision); where target_modules is an expression, those that it matches
};

struct LoraSpec {
    int64_t r = 16;
    double lora_alpha = 16;
    double lora_dropout = 0.0;
    bool use_rslora = false;                  ///< scale alpha/sqrt(r) instead of alpha/r
    bool use_dora = false;                    ///< a trained magnitude for each output
    std::vector<std::string> target_modules;  ///< names of projections ("q_proj", …) or ends of module paths
    /// No option named them: of a model of experts they are its attention's alone.
    bool usual_targets = false;
    /// Ends of paths of tensors that hold a layer's experts: "mlp.experts.gate_up_proj", "mlp.experts.down_proj".
    std::vector<std::string> target_parameters;
    bool target_is_regex = false;              ///< target_modules is one regular expression over whole module paths
    std::vector<std::string> modules_to_save;  ///< "embed_tokens", "lm_head"
    std::vector<std::pair<std::string, int64_t>> rank_pattern;  ///< in file order: the first match wins
    std::vector<std::pair<std::string, double>> alpha_pattern;
    std::vector<int64_t> layers_to_transform;  ///< empty: all
    ServeGrid serve_grid = ServeGrid::none;    ///< trained through; of use with the base folded into it alone
    TowerTargets tower = TowerTargets::none;
};

/// One module's adapter; r = 0: none.
struct LoraModule {
    int64_t r = 0;
    double alpha = 0;
    double scale = 0;
    bool dora = false;  ///< with a magnitude
};

/// The adapters of one layer, of those of its matrices that have one.
class LayerLora {
  public:
    /// r = 0 where the matrix has none.
    const LoraModule& operator[](Projection p) const {
        static constexpr LoraModule none;
        const auto found = modules_.find(p);
        return found == modules_.end() ? none : found->second;
    }
    LoraModule& add(Projection p) { return modules_[p]; }
    bool empty() const { return modules_.empty(); }
    /// PEFT wraps the module of experts once for each of their tensors: the first one's adapter is then of the module
    /// within, "base_layer".
    bool is_within(Projection p) const {
        return p == Projection::experts_gate_up && (*this)[Projection::experts_down].r > 0;
    }
    bool crosses = false;  ///< LayerSpec::crosses: its attention's modules are below cross_attn
    /// In the order of Projection.
    auto begin() const { return modules_.begin(); }
    auto end() const { return modules_.end(); }

  private:
    std::map<Projection, LoraModule> modules_;
};

/// The spec with targets as this model has them: where q_proj, k_proj and v_proj are all named and are one
/// matrix of the model, that matrix replaces them; so for gate_proj and up_proj. A list of all projections thus
/// means all of any model. Of a part of another model a list becomes an expression: in the whole one, PEFT would
/// match other parts' modules too. The list of an adapter that was read stays where it names linears of the
/// tower.
LoraSpec for_model(LoraSpec lora, const ModelSpec& model);

/// An adapter of experts has for each of them an A [r, K] and a B [N, r]. Without lora_dropout, as in PEFT.
///
/// Resolves patterns as PEFT does: a key matches the module path when `(.*\.)?(key)$` does as a regular expression.
/// Returns one entry a layer. Usage Error for an unknown target or module name, a layer out of range, r < 1,
/// a pattern key that is no valid regular expression, or a target list that matches nothing.
std::vector<LayerLora> resolve_lora(const LoraSpec& lora, const ModelSpec& model);

/// The adapters that rank_pattern and alpha_pattern give these modules. Usage Error as above.
std::vector<LoraModule> lora_modules(const LoraSpec& lora, const std::vector<std::string>& paths);

/// Of options that a user gives: usage Error for a key of rank_pattern or alpha_pattern that no adapter has its value
/// from. In an adapter's own configuration such a key means nothing, and may stand.
void refuse_idle_patterns(const LoraSpec& lora, const ModelSpec& model);

}  // namespace unsloth::spec
