// The teacher of a run of distillation: a model that is planned together with the student, or a file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "unsloth/engine_api/engine.h"
#include "unsloth/objective/teacher.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/session/session.h"

namespace unsloth::session {

/// A hash of what each id means, of the tokenizer in a folder; empty where there is none.
std::string vocabulary_hash(const OpenedModel& opened);

/// A teacher that is a model, planned for its student's passes.
class TeacherPlan {
  public:
    /// Sets what the configuration leaves to the program.
    using Choose = std::function<void(const config::Config& of_teacher, model::ModelPlan& plan)>;
    /// `of_teacher`: as teachers_config() makes it, of whose model `file` is. With the student's device, kernels and
    /// processes. What of the student's own base it has in host memory is expected there by student.held, for plans
    /// made after this.
    TeacherPlan(config::LoadedConfig of_teacher, std::shared_ptr<const formats::WeightFile> file,
                const model::LoadRequest& student, const Choose& choose);
    /// For other passes of the student.
    TeacherPlan resized(const model::LoadRequest& student, const Choose& choose) const;

    const model::ModelPlan& plan() const { return plan_; }
    /// Plans it again with all layers in host memory, where the student's held memory expects them as well; false where
    /// nothing may be moved.
    bool move_to_host();
    /// What it takes from the student.
    placement::MemoryBudget need() const;

  private:
    void finish(const model::LoadRequest& student, const Choose& choose);
    void tell_student() const;

    config::LoadedConfig of_teacher_;
    model::ModelPlan plan_;
    std::shared_ptr<memory::HeldMemory> students_;  ///< nullptr: its base is another one
};

/// The run's configuration with the teacher in the student's place.
config::LoadedConfig teachers_config(const config::LoadedConfig& run);

class TeacherSetup {
  public:
    /// Opens distill.teacher. Input Error where its ids do not mean what the student's mean, which says what differs.
    TeacherSetup(const config::LoadedConfig& run, const OpenedModel& student, at::Device device);

    objective::Teacher& teacher();
    /// Of a file: tokens that it names of each target; 0: the teacher is a model.
    int64_t named_tokens() const { return file_ ? file_->top_k() : 0; }
    /// Of a file: input Error where one of these rows is not in it.
    void require(const data::Dataset& rows, const std::string& what) const;

    /// Plans a model; a file takes nothing. `group` may be nullptr; called by all ranks.
    void plan(const model::LoadRequest& student, comm::Group* group);
    /// nullptr: the teacher is a file.
    TeacherPlan* plan() { return plan_ ? &*plan_ : nullptr; }
    void load(comm::Group* group);
    /// For the log.
    std::string describe() const;

  private:
    config::LoadedConfig of_teacher_;
    OpenedModel opened_;
    at::Device device_;
    objective::TeacherModel words_;
    std::unique_ptr<objective::TeacherFile> file_;
    std::optional<TeacherPlan> plan_;
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
};

}  // namespace unsloth::session
