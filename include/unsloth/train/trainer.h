// The training run: plan, load, loop, evaluate, save.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/train/anomaly.h"
#include "unsloth/train/doubts.h"
#include "unsloth/train/observer.h"
#include "unsloth/train/run_record.h"
#include "unsloth/train/run_saver.h"
#include "unsloth/train/run_setup.h"
#include "unsloth/train/schedule.h"
#include "unsloth/train/step.h"
#include "unsloth/train/step_source.h"

namespace unsloth::train {

struct ReferenceCache;
class RowFile;

class Trainer {
  public:
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
    data::StepLoader& loader() { return setup_.loader(); }
    Stepper& stepper() { return *stepper_; }
    double learning_rate(int64_t step) const;  ///< of step number `step`, from 1
    int64_t total_steps() const { return setup_.total_steps(); }
    int64_t steps_done() const { return progress_.step; }
    /// Takes the next step and waits for its result; evaluates where the schedule follows evaluations.
    StepResult take_step(const IssueOptions& options = {});
    const model::ModelPlan& plan() const { return setup_.plan(); }
    /// Of the model that teaches it; nullptr: there is none.
    const model::ModelPlan* teachers_plan() const { return setup_.teachers_plan(); }

  private:
    void run_together();
    void require_same_values();
    void tell_memory() const;
    void score_references();
    ReferenceCache reference_cache(model::PolicyScope scope) const;
    void banner() const;
    void print_plan() const;
    void restore();
    void loop(StepSource& source);
    bool issue(const data::StepBatch& batch, int64_t step);
    bool is_logged(int64_t step) const;
    bool save_time_has_come() const;
    void checkpoint();
    [[noreturn]] void stop_for(int signal);
    bool profiles(int64_t step) const;
    void save_while_training();
    double peak_gib() const;
    void summarise(const std::string& exit_reason, const std::string& error);
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
    RunFiles run_files() const;
    RunMoment moment() const;
    void begin_folder() const;
    void load_values(const std::filesystem::path& checkpoint);
    std::filesystem::path best_checkpoint() const;
    void load_best();
    void save_result();
    bool finish_saving();
    bool leads() const { return setup_.leads(); }
    bool full() const { return setup_.full(); }
    const config::Config& config() const { return setup_.config(); }

    const RunSetup setup_;
    std::unique_ptr<RowFile> answer_rows_;  ///< nullptr: none were judged yet
    objective::References references_, eval_references_;
    std::unique_ptr<objective::Objective> objective_;
    std::optional<PlateauSchedule> plateau_;  ///< reduce_lr_on_plateau follows the evaluations
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
    std::unique_ptr<Stepper> stepper_;
    std::optional<int64_t> saved_step_;  ///< of the last checkpoint asked for
    std::optional<RunSaver> saver_;      ///< of ranks that write parts of a checkpoint, once the model is loaded
    std::vector<std::unique_ptr<Observer>> observers_;
    HistoryObserver history_;
    LossWatch loss_watch_;
    std::chrono::steady_clock::time_point last_save_;
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
