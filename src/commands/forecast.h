// A configuration's run on GPUs that need not be here, or on this machine's CPU, of a model whose weights and rows need
// not be here either.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "unsloth/data/loader.h"
#include "unsloth/engine_api/engine.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/session/teacher.h"
#include "unsloth/spec/row_images.h"

namespace unsloth::commands {

inline const at::Device absent_gpu = at::Device(at::kCUDA);  ///< without an index: one that is not here

/// What a plan is made for: a machine of one GPU or several that are alike, or the CPU.
struct Target {
    placement::Machine machine;
    at::Device device = absent_gpu;
    int64_t memory = 0;  ///< of a GPU, or the machine's
    int64_t gpus = 1;    ///< or processes
    spec::RowImages images;
};
/// The CPU where hardware.device says so and no card is named. usage Error for a card that is not known, and for a
/// memory that is too small for any plan.
Target target_of(const engine_api::PlanRequest& request, const config::Config& config);

/// The checkpoint, or as much of it as says what it is: a config.json, or the name of a known shape.
std::shared_ptr<const formats::WeightFile> open_or_describe(const config::Config& config);

/// With the numbers that a run of this model would choose where they are left to it (auto); logs them. Rows are not
/// read: max_steps bounds what a rank holds; without it 32 is assumed.
config::LoadedConfig with_auto_values(config::LoadedConfig loaded, const spec::ModelSpec& spec, int64_t gpus);

/// What a run takes.
struct Estimate {
    std::vector<model::ModelPlan> stages;         ///< of a pipeline those that may take most; without one, one
    std::size_t fullest = 0;                      ///< the stage that takes most of its GPU
    bool fits = false;                            ///< all stages do
    double step_ms = 0;                           ///< of the slowest stage
    double tokens_per_second = 0;                 ///< of all GPUs together
    std::optional<session::TeacherPlan> teacher;  ///< on each of them, too
    const model::ModelPlan& plan() const { return stages[fullest]; }
    const model::ModelPlan* teachers() const { return teacher ? &teacher->plan() : nullptr; }
    /// Of a GPU, and of its machine's host memory.
    spec::MemoryNeed need() const;
};

/// The run of a configuration, with rows of max_seq_length: its request is made as the run's is. usage Error for what a
/// run would refuse, too.
class Forecast {
  public:
    /// `file`: of the configuration's model. `like`: of the same model and the same parameters to train, which saves
    /// time.
    Forecast(config::LoadedConfig loaded, const Target& target, std::shared_ptr<const formats::WeightFile> file,
             const Forecast* like = nullptr);

    const config::Config& config() const { return loaded_.config; }
    const std::shared_ptr<const formats::WeightFile>& file() const { return file_; }
    const Target& target() const { return target_; }
    int64_t rows() const { return rows_; }  ///< of a micro-batch: as the configuration says, or as was chosen
    int64_t length() const { return length_; }
    int64_t micro_batches() const { return micro_batches_; }
    int64_t copies() const { return copies_; }  ///< of the model, which have rows of their own
    /// Tokens of a step, of all ranks.
    int64_t step_tokens() const;
    /// What NCCL takes of a GPU at most; 0: there is one.
    int64_t communicator_bytes() const { return communicator_bytes_; }
    placement::MemoryBudget budget() const {
        return placement::memory_budget(config(), target_.device, target_.machine);
    }

    /// Whether training.sample_prompts could be read: without a tokenizer each counts as max_seq_length tokens.
    bool knows_prompts() const { return knows_prompts_; }

    /// With what the configuration leaves to the program: that is chosen once and for all.
    Estimate choose();
    /// Whether the configuration fits with the smallest memory use among the choices that it leaves open.
    bool can_hold(int64_t rows, int64_t length) const;
    /// Of a GPU; no step can take less: one that keeps everything and has room for that, with passes of any size that a
    /// run may choose.
    double least_step_ms() const;

  private:
    bool regroups() const { return placement::may_regroup(config(), target_.device, file_->spec); }
    void describe_teacher();
    void foresee_answers(const model::LoadRequest& request);
    void choose_for(Estimate& estimate) const;
    placement::Machine left_by(const std::optional<session::TeacherPlan>& teacher) const;
    session::TeacherPlan::Choose choose_for_teacher() const;
    std::optional<session::TeacherPlan> teacher_of(const model::LoadRequest& student) const;
    model::LoadRequest sized(model::LoadRequest request, int64_t rows, int64_t length) const;
    double tower_ms() const;
    model::ModelPlan plan(int64_t rows, int64_t length) const;
    std::vector<model::ModelPlan> stages(int64_t rows, int64_t length) const;
    bool can_hold(model::ModelPlan plan, const placement::MemoryBudget& budget) const;
    bool can_hold_moved(model::ModelPlan& plan, const placement::MemoryBudget& budget) const;

    config::LoadedConfig loaded_;
    Target target_;
    std::shared_ptr<const formats::WeightFile> file_;
    std::vector<placement::Answering> answering_;
    bool knows_prompts_ = true;
    int64_t teacher_tokens_ = 0;                                ///< as Recipe's
    std::shared_ptr<const model::ModelPlan> given_;             ///< for the rows that the configuration says
    std::shared_ptr<const formats::WeightFile> teachers_file_;  ///< nullptr: there is none, or a file of what it said
    std::shared_ptr<const session::TeacherPlan> teacher_;       ///< for the passes of given_
    int64_t communicator_bytes_ = 0;
    int64_t rows_ = 0, length_ = 0, micro_batches_ = 1, copies_ = 1;  ///< of the model
};

}  // namespace unsloth::commands
