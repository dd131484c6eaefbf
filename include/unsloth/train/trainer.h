// The training run: plan, load, loop, evaluate, save.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/comm/mesh.h"
#include "unsloth/core/folder_lock.h"
#include "unsloth/data/loader.h"
#include "unsloth/train/anomaly.h"
#include "unsloth/train/doubts.h"
#include "unsloth/train/evaluation.h"
#include "unsloth/train/observer.h"
#include "unsloth/train/resume.h"
#include "unsloth/train/run_record.h"
#include "unsloth/train/run_saver.h"
#include "unsloth/train/samples.h"
#include "unsloth/train/schedule.h"
#include "unsloth/train/session.h"
#include "unsloth/train/step.h"
#include "unsloth/train/teacher.h"

namespace unsloth::train {

struct ReferenceCache;
class AnswerEvaluator;
class RowFile;

class Trainer {
  public:
    enum class Purpose : uint8_t {
        trains,
        examines,  ///< steps of a run are looked at again: nothing is written, and its folder is left alone
    };
    /// Meets the other ranks if the environment names some, opens the model and the data, and plans memory. Input,
    /// usage or runtime Error; nothing large is allocated yet.
    explicit Trainer(const config::LoadedConfig& loaded, Purpose purpose = Purpose::trains);
    ~Trainer();
    /// The whole run; with max_steps 0 it ends after the plan. Throws Interrupted after saving when a signal asked to
    /// stop.
    void run();

    // For tests and tools that drive the loop themselves:
    /// Allocates and loads the model.
    void load();
    model::Model& model() { return *model_; }
    data::StepLoader& loader() { return *loader_; }
    Stepper& stepper() { return *stepper_; }
    double learning_rate(int64_t step) const;  ///< of step number `step`, from 1
    int64_t total_steps() const { return total_steps_; }
    int64_t steps_done() const { return progress_.step; }
    /// Takes the next step and waits for its result; evaluates where the schedule follows evaluations.
    StepResult take_step(const IssueOptions& options = {});
    const model::ModelPlan& plan() const { return *plan_; }
    /// Of the model that teaches it; nullptr: there is none.
    const model::ModelPlan* teachers_plan() const;

  private:
    void telling_others(const std::function<void()>& work) const;
    void run_together();
    void settle_learning_rate();
    void require_agreement() const;
    void require_same_values();
    void require_disk() const;
    bool leads() const { return environment_.rank == 0; }  ///< writes files and reports
    /// Who of those that read rows of their own this rank is; those that share a model's layers read the same.
    int data_rank() const { return mesh_ ? mesh_->at().dp : 0; }
    int data_ranks() const { return mesh_ ? mesh_->shape().dp : 1; }
    data::ContextRank context() const {
        return mesh_ ? data::ContextRank{mesh_->at().cp, mesh_->shape().cp} : data::ContextRank{};
    }
    void open_output();
    void take_output();
    void open_data();
    void make_plan();
    void choose_pass_rows(model::LoadRequest& request, const std::vector<Answering>& answering);
    std::string plan_before() const;
    void tell_memory() const;
    void choose_plan();
    MemoryBudget taken() const;
    MemoryBudget budget() const;
    bool fits_everywhere() const;
    void plan_references(data::BatchLimits& limits);
    std::vector<Answering> answering();
    void score_references();
    ReferenceCache reference_cache(model::PolicyScope scope) const;
    void banner() const;
    void print_plan() const;
    config::Config effective_config() const;
    void restore();
    int64_t cpu_threads() const;
    void loop();
    bool issue(const data::StepBatch& batch, int64_t step);
    bool is_logged(int64_t step) const;
    bool save_time_has_come() const;
    void checkpoint();
    [[noreturn]] void stop_for(int signal);
    bool profiles(int64_t step) const;
    void save_while_training();
    double peak_gib() const;
    void summarise(const std::string& exit_reason, const std::string& error, const std::string& error_id = {});
    void report(const StepResult& result);
    std::vector<RankView> gather_views(const StepResult& result) const;
    std::string keep_anomaly(const StepResult& result, std::vector<RankView> views) const;
    void pass_over_spike(const StepResult& result);
    std::string bad_weight() const;
    [[noreturn]] void stop_at_bad_step(const StepResult& result);
    void maybe_evaluate(int64_t step);
    void judge(const EvalReport& report);
    bool stops_early() const;
    void tell_early_stop() const;
    bool judge_answers(EvalReport& report, int& signal);
    void answer_prompts(int64_t step);
    StatePart state_part() const;
    comm::MeshShape mesh_shape() const { return mesh_ ? mesh_->shape() : comm::MeshShape{}; }
    RunFiles run_files() const;
    RunMoment moment() const;
    void begin_folder() const;
    void load_values(const std::filesystem::path& checkpoint);
    std::filesystem::path best_checkpoint() const;
    void load_best();
    void save_result();
    bool finish_saving();
    bool full() const { return config().lora.finetuning_type == config::FinetuningType::full; }
    /// Of the result's weights: float32 where the run computes in it, as adapters have, else the checkpoint's own.
    spec::DType saved_dtype() const;
    const config::Config& config() const { return loaded_.config; }

    config::LoadedConfig loaded_;
    Purpose purpose_;
    comm::LaunchEnvironment environment_;
    at::Device device_;
    std::unique_ptr<comm::Group> group_;  ///< nullptr: alone
    std::optional<comm::Mesh> mesh_;      ///< of the group
    std::optional<FolderLock> lock_;      ///< of the output folder, held by the rank that writes
    bool replaces_ = false;               ///< on that rank: the folder holds a result, which this run replaces
    std::optional<ResumePoint> resume_;
    std::vector<std::string> nccl_;  ///< NCCL's environment variables, for the log
    std::string data_fingerprint_;   ///< of the training rows
    OpenedModel opened_;
    std::unique_ptr<data::StepLoader> loader_;
    std::optional<Evaluator> evaluator_;
    std::unique_ptr<Samples> samples_;          ///< nullptr: there are no prompts
    std::unique_ptr<AnswerEvaluator> answers_;  ///< nullptr: without training.eval_metric
    std::unique_ptr<RowFile> answer_rows_;      ///< nullptr: none were judged yet
    data::Dataset eval_rows_;
    std::optional<data::EvalLoader> reference_rows_;  ///< the training rows to come, where a reference scores them
    objective::References references_, eval_references_;
    std::unique_ptr<Instruction> instruction_;  ///< nullptr: there is no teacher
    std::unique_ptr<objective::Objective> objective_;
    int64_t total_steps_ = 0;
    config::ScheduleOptions schedule_;
    std::optional<PlateauSchedule> plateau_;  ///< reduce_lr_on_plateau follows the evaluations
    std::unique_ptr<model::ModelPlan> plan_;
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
    std::unique_ptr<Stepper> stepper_;
    std::optional<int64_t> saved_step_;  ///< of the last checkpoint asked for
    std::optional<RunSaver> saver_;      ///< of ranks that write parts of a checkpoint, once the model is loaded
    std::vector<std::unique_ptr<Observer>> observers_;
    HistoryObserver history_;
    LossWatch loss_watch_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_save_;
    RunSummary summary_;  ///< so far
    TimeLeft time_left_;
    formats::LossMean losses_;              ///< of this process' steps
    formats::RunProgress progress_;         ///< after the last step whose result was read
    std::optional<int64_t> compared_step_;  ///< with a group: after it all ranks had the same values
    double hardware_rate_ = 0;              ///< of this process' GPU (report/hardware_rate.h); 0: not known
    bool started_ = false;                  ///< a step of this process is done
    double step_seconds_ = 0;               ///< of the last step
    int agreed_signal_ = 0;                 ///< with a group: as all ranks saw it with the last result
    bool agreed_save_ = false;
};

}  // namespace unsloth::train
