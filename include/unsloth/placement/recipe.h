// The one place that makes the request by which a model is planned and loaded: for runs, for `plan`, for teachers, for
// passes that answer or score, and for benches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "unsloth/comm/mesh.h"
#include "unsloth/data/loader.h"
#include "unsloth/engine_api/engine.h"
#include "unsloth/model/loader.h"
#include "unsloth/placement/load_request.h"

namespace unsloth::placement {

/// The processes that share a model and its rows, and which of them this one is.
struct Ranks {
    comm::MeshShape mesh = {};
    int rank = 0;
    std::vector<int> here = {0};        ///< those of this one's machine
    const comm::Mesh* links = nullptr;  ///< outlives the model; nullptr: alone, or to plan with, without an exchange
    bool reach = false;  ///< ranks that may hold a frozen base among them read each other's device memory
};
/// This process'; both may be nullptr.
Ranks ranks_of(comm::Group* group, const comm::Mesh* mesh);
/// To plan with: the first of `mesh`, whose processes are those of one machine.
Ranks planned_ranks(const comm::MeshShape& mesh, bool reach);
/// Whether ranks that reach each other's memory hold a frozen base among them.
bool divides_base(const config::Config& config);

/// What a run's answers need of the plan: some at a time, each within `context` tokens with its prompt.
struct Answering {
    int64_t rows = 1;
    int64_t prompt = 1;  ///< tokens of the longest
    int64_t context = 1;
    int64_t images = 0, patches = 0;  ///< most images of a prompt, and patches of the largest
};

/// What a model is loaded for.
enum class Work : uint8_t {
    run,     ///< training as the configuration says
    bench,   ///< training steps of cross-entropy, which save nothing, and whose ranks have all parameters each
    passes,  ///< forward passes alone
};

/// What a request depends on, apart from the configuration and the rows.
struct Recipe {
    Work work = Work::run;
    at::Device device = at::kCPU;
    std::shared_ptr<const spec::KernelTable> kernels = {};  ///< nullptr: the table that hardware.kernels names
    std::shared_ptr<memory::HeldMemory> held = {};          ///< as LoadRequest's
    Ranks ranks = {};
    int64_t teacher_tokens = 0;  ///< that a teacher's file names of each target; 0: there is none
    // Of passes alone.
    CacheSize cache = {};
    std::vector<weights::NamedAdapter> adapters = {};  ///< as LoadRequest's, as what follows
    weights::AdapterSlots adapter_slots = {};
    int64_t fewest_tokens = 0;
    bool tails_may_stay = true;
};

/// All of a request but what follows from the rows (fit_to), and a pipeline's stage, which is cut of a plan. As
/// load_request(); usage Error for what the ranks do not do together, too.
model::LoadRequest make_request(const config::LoadedConfig& loaded, const spec::ModelSpec& spec, const Recipe& recipe);
/// Of a training run: training.router_aux_loss_coef, or else what supervised training takes from config.json.
double router_aux_coefficient(const config::TrainingOptions& training, const spec::ModelSpec& spec);

/// Sizes a request for passes over batches within these limits, which are the rank's own, and for a run's answers.
void fit_to(model::LoadRequest& request, const spec::ModelSpec& spec, data::BatchLimits limits,
            const std::vector<Answering>& answering = {});

/// Whether rows of one prompt share its tokens: the answers of a pair (preference.share_prompt), and completions that
/// are sampled. Those of a model with gated delta nets never do: each resumes from a state, which it changes.
bool shares_prompts(const config::Config& config, const spec::ModelSpec& spec);

/// The most that `rows` training rows which fill max_seq_length may hold: two texts each for preference objectives,
/// whose prompts of a token at least are shared where shares_prompts() says so.
data::BatchLimits full_rows(const config::Config& config, const spec::ModelSpec& spec, int64_t rows, int64_t length);

}  // namespace unsloth::placement
