// Everything that a run knows before it takes memory: its ranks, the model on disk, rows, the checkpoint that it
// resumes from, the plan. It is constant from then on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/comm/mesh.h"
#include "unsloth/config/schedule_arguments.h"
#include "unsloth/config/step_intervals.h"
#include "unsloth/core/folder_lock.h"
#include "unsloth/data/loader.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/rollouts/group.h"
#include "unsloth/rollouts/order.h"
#include "unsloth/session/session.h"
#include "unsloth/session/teacher.h"
#include "unsloth/train/answers.h"
#include "unsloth/train/evaluation.h"
#include "unsloth/train/resume.h"
#include "unsloth/train/samples.h"

namespace unsloth::train {

enum class Purpose : uint8_t {
    trains,
    examines,  ///< steps of a run are looked at again: nothing is written, and its folder is left alone
};

class RunSetup {
  public:
    /// Meets the other ranks if the environment names some, opens the model and the data, and plans memory. Input,
    /// usage or runtime Error; nothing large is allocated yet.
    RunSetup(const config::LoadedConfig& loaded, Purpose purpose);
    RunSetup(const RunSetup&) = delete;
    RunSetup& operator=(const RunSetup&) = delete;

    /// Work that all ranks do: an error of this one ends all of them, with its reason.
    void telling_others(const std::function<void()>& work) const;

    /// As given, with what it left to the program.
    const config::Config& config() const { return loaded_.config; }
    /// With what an adapter folder decided, too, so that a run started from the written file does not contradict it.
    config::Config effective_config() const;
    bool full() const { return config().lora.finetuning_type == config::FinetuningType::full; }
    /// Of the result's weights: float32 where the run computes in it, as adapters have, else the checkpoint's own.
    spec::DType saved_dtype() const;

    std::chrono::steady_clock::time_point began() const { return began_; }
    const comm::LaunchEnvironment& environment() const { return environment_; }
    bool leads() const { return environment_.rank == 0; }                 ///< writes files and reports
    comm::Group* group() const { return group_.get(); }                   ///< nullptr: alone
    const comm::Mesh* mesh() const { return mesh_ ? &*mesh_ : nullptr; }  ///< of the group
    comm::MeshShape mesh_shape() const { return mesh_ ? mesh_->shape() : comm::MeshShape{}; }
    /// Who of those that read rows of their own this rank is; those that share a model's layers read the same.
    int data_rank() const { return mesh_ ? mesh_->at().dp : 0; }
    int data_ranks() const { return mesh_ ? mesh_->shape().dp : 1; }
    const std::vector<std::string>& nccl() const { return nccl_; }  ///< NCCL's environment variables, for the log

    at::Device device() const { return device_; }
    /// Among how many threads products on the CPU are divided, on which their rounding depends; 0 on a GPU.
    int64_t cpu_threads() const;

    const session::OpenedModel& opened() const { return opened_; }
    const std::optional<ResumePoint>& resume() const { return resume_; }               ///< what it resumes from
    int64_t first_step() const { return resume_ ? resume_->state.progress.step : 0; }  ///< done before it began
    /// On the rank that leads: the output folder holds a result, which this run replaces.
    bool replaces() const { return replaces_; }

    data::StepLoader& loader() const { return *loader_; }  ///< with completions to sample, of rows as long as theirs
    /// Of completions; nullptr without.
    const rollouts::RolloutOrder* rollout_order() const { return order_ ? &*order_ : nullptr; }
    rollouts::GroupSource* groups() const { return groups_.get(); }
    int64_t rows_in_flight() const { return rows_in_flight_; }  ///< completions that a rank samples at a time
    const std::string& data_fingerprint() const { return data_fingerprint_; }  ///< of the training rows
    int64_t total_steps() const { return total_steps_; }
    int64_t epoch_steps() const { return epoch_steps_; }  ///< of a whole epoch, whatever the run's length
    /// How often it evaluates, saves and logs.
    const config::StepIntervals& intervals() const { return intervals_; }
    const config::ScheduleOptions& schedule() const { return schedule_; }
    const Evaluator* evaluator() const {
        return evaluator_ ? &*evaluator_ : nullptr;
    }  ///< nullptr: without rows for it
    /// Of one evaluation, or the most that it samples; 0: there is none.
    int64_t evaluated_tokens() const {
        return evaluator_ ? evaluator_->tokens() : groups_ ? groups_->evaluated_tokens() : 0;
    }
    const model::KeptFeatures* kept_features() const { return kept_.get(); }  ///< nullptr: none may be kept
    const CompletionEvaluator* answers() const { return answers_.get(); }     ///< nullptr: without training.eval_metric
    Samples* samples() const { return samples_.get(); }                       ///< nullptr: there are no prompts
    /// The training rows to come, where a reference scores them.
    const data::EvalLoader* reference_rows() const { return reference_rows_ ? &*reference_rows_ : nullptr; }
    session::TeacherSetup* teacher() const { return teacher_.get(); }  ///< nullptr: there is no teacher

    const model::ModelPlan& plan() const { return *plan_; }
    /// Of the model that teaches it; nullptr: there is none.
    const model::ModelPlan* teachers_plan() const;
    /// By the teacher, if there is one: it is loaded first.
    placement::MemoryBudget taken() const;
    /// What the plan may take.
    placement::MemoryBudget budget() const;

  private:
    data::ContextRank context() const {
        return mesh_ ? data::ContextRank{mesh_->at().cp, mesh_->shape().cp} : data::ContextRank{};
    }
    void settle_learning_rate();
    void settle_rank();
    void open_output();
    void take_output();
    void open_data();
    void open_rollouts();
    void settle_steps(int64_t total, int64_t of_epoch);
    data::BatchLimits row_limits() const;
    void require_agreement() const;
    void require_images() const;
    void make_plan();
    void choose_pass_rows(model::LoadRequest& request, const std::vector<placement::Answering>& answering);
    std::string plan_before() const;
    void choose_plan();
    bool may_keep_features() const;
    int64_t features_bytes() const;
    void plan_kept_features();
    bool fits_everywhere() const;
    void plan_references(data::BatchLimits& limits);
    std::vector<placement::Answering> answering(const model::LoadRequest& request);
    placement::Answering sampling(const model::LoadRequest& request, placement::Answering needs);
    void require_disk() const;

    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    config::LoadedConfig loaded_;
    Purpose purpose_;
    comm::LaunchEnvironment environment_;
    at::Device device_;
    std::vector<std::string> nccl_;
    std::unique_ptr<comm::Group> group_;
    std::optional<comm::Mesh> mesh_;
    std::optional<FolderLock> lock_;  ///< of the output folder, held by the rank that writes
    bool replaces_ = false;
    std::optional<ResumePoint> resume_;
    std::string data_fingerprint_;
    session::OpenedModel opened_;
    std::unique_ptr<data::StepLoader> loader_;
    std::optional<rollouts::RolloutOrder> order_;
    std::unique_ptr<rollouts::GroupSource> groups_;
    std::shared_ptr<model::KeptFeatures> kept_;  ///< of images; nullptr: they are seen in each pass
    int64_t rows_in_flight_ = 0;
    data::Dataset eval_rows_;
    std::optional<Evaluator> evaluator_;
    std::unique_ptr<Samples> samples_;
    std::unique_ptr<CompletionEvaluator> answers_;
    std::optional<data::EvalLoader> reference_rows_;
    std::unique_ptr<session::TeacherSetup> teacher_;
    int64_t total_steps_ = 0, epoch_steps_ = 0;
    config::StepIntervals intervals_;
    config::ScheduleOptions schedule_;
    std::unique_ptr<model::ModelPlan> plan_;
};

}  // namespace unsloth::train
