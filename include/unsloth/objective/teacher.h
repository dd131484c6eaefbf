// What a student's teacher says of its targets: a model loaded with the student, or a file of earlier outputs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "unsloth/data/dataset.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/model/model.h"
#include "unsloth/ops/distill.h"

namespace unsloth::objective {

/// A student's buffers (distillation_needs()), by number: a divergence a target; of a teacher's file [n k] ids and
/// [n (k + 1)] log-probabilities.
enum DistillBuffer : std::size_t { divergence_buffer, teacher_ids_buffer, teacher_logp_buffer };

class Teacher {
  public:
    virtual ~Teacher() = default;
    /// Before the student's passes over a micro-batch; `batch` outlives them.
    virtual void prepare(const data::Batch& batch, model::MicroBatch& micro) = 0;
    /// Of a prepared micro-batch's targets [first, first + rows), asked for in their order.
    virtual ops::TeacherRows rows(const model::MicroBatch& micro, int64_t first, int64_t rows) = 0;
    /// The same for a batch without a backward pass, which outlives what is returned.
    using Answers = std::function<ops::TeacherRows(int64_t first, int64_t rows)>;
    virtual Answers answers(const data::Batch& batch) = 0;
};

/// A model, which passes over each micro-batch when the student's head is reached.
class TeacherModel final : public Teacher {
  public:
    /// Before the first pass; the model outlives this.
    void set(model::Model& model) { model_ = &model; }
    void prepare(const data::Batch& batch, model::MicroBatch& micro) override { batches_[&micro] = &batch; }
    ops::TeacherRows rows(const model::MicroBatch& micro, int64_t first, int64_t rows) override;
    Answers answers(const data::Batch& batch) override;

  private:
    model::Model* model_ = nullptr;
    std::unordered_map<const model::MicroBatch*, const data::Batch*> batches_;
};

/// Names a segment's tokens and targets.
uint64_t segment_key(const data::Batch& batch, std::size_t segment);

/// The tensors of a teacher's file, and its metadata's names: of S segments and their n targets in order, `keys` i64
/// [S] (segment_key), `starts` i64 [S + 1], `ids` i32 [n, k] by falling probability, `logp` f32 [n, k + 1], at the
/// temperature, the last of all other tokens together.
namespace teacher_file {
inline constexpr const char *keys = "keys", *starts = "starts", *ids = "ids", *logp = "logp";
inline constexpr const char *format = "unsloth_teacher", *version = "1", *temperature = "temperature",
                            *vocabulary = "vocabulary", *vocabulary_size = "vocabulary_size", *model = "model";
}  // namespace teacher_file

/// What `score --top_k` wrote.
class TeacherFile final : public Teacher {
  public:
    /// Input Error for a file that is none, or was made at another temperature. `top_k`: of each target this many
    /// tokens count, the others join the rest; 0: all that the file has; usage Error for more.
    TeacherFile(const std::filesystem::path& path, double temperature, int64_t top_k, int64_t vocab_size,
                at::Device device);
    int64_t top_k() const { return k_; }
    const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
    /// Input Error where one of these rows is not in the file; reads all of them.
    void require(const data::Dataset& rows, const std::string& what) const;
    void prepare(const data::Batch& batch, model::MicroBatch& micro) override;
    ops::TeacherRows rows(const model::MicroBatch& micro, int64_t first, int64_t rows) override;
    Answers answers(const data::Batch& batch) override;

  private:
    struct Words {
        std::vector<int32_t> ids;
        std::vector<float> logp;
    };
    Words words_of(const data::Batch& batch) const;
    int64_t find(const data::Batch& batch, std::size_t segment) const;

    formats::SafetensorsFile file_;
    at::Device device_;
    int64_t stored_ = 0, k_ = 0;  ///< tokens of a target: in the file, and taken
    const int32_t* ids_ = nullptr;
    const float* logp_ = nullptr;
    struct Range {
        int64_t begin = 0, end = 0;
    };
    std::unordered_map<uint64_t, Range> segments_;
};

}  // namespace unsloth::objective
