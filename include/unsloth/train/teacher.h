// The teacher of a run of distillation: a model that is planned beside the student, or a file.
#pragma once

#include <memory>
#include <string>

#include "unsloth/config/engine.h"
#include "unsloth/objective/teacher.h"
#include "unsloth/train/memory_use.h"
#include "unsloth/train/session.h"

namespace unsloth::train {

/// A hash of what each id means, of the tokenizer in a folder; empty where there is none.
std::string vocabulary_hash(const OpenedModel& opened);

class Instruction {
  public:
    /// Opens distill.teacher. Input Error where its ids do not mean what the student's mean, which says what differs.
    Instruction(const config::LoadedConfig& run, const OpenedModel& student, at::Device device);

    objective::Teacher& teacher();
    /// Of a file: tokens that it names of each target; 0: the teacher is a model.
    int64_t named_tokens() const { return file_ ? file_->top_k() : 0; }
    /// Of a file: input Error where one of these rows is not in it.
    void require(const data::Dataset& rows, const std::string& what) const;

    /// Plans a model for the student's passes, on the device if distill.teacher_device_map leaves that to the program,
    /// and with the student's kernels; a file takes nothing. What of the student's own base it has in host memory is
    /// expected there by student.held, for plans made after this. `group` may be nullptr; called by all ranks.
    void plan(const model::LoadRequest& student, comm::Group* group);
    /// Plans it anew with all layers in host memory, where the student's held memory expects them as well; false where
    /// nothing may be moved.
    bool move_to_host();
    MemoryBudget need() const;
    void load(comm::Group* group);
    /// For the log.
    std::string describe() const;

  private:
    void tell_student() const;

    config::LoadedConfig of_teacher_;
    OpenedModel opened_;
    at::Device device_;
    objective::TeacherModel words_;
    std::unique_ptr<objective::TeacherFile> file_;
    std::unique_ptr<model::ModelPlan> plan_;
    std::shared_ptr<memory::HeldMemory> students_;  ///< nullptr: its base is another one
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
};

/// `score --top_k`: what the model says of the targets of a run's rows, training and evaluation, into request.out.
void write_teacher_file(const config::LoadedConfig& loaded, const config::ScoreRequest& request);

}  // namespace unsloth::train
