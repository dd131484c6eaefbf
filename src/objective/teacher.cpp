// Legend: n targets, k tokens that the file's user takes of each.
#include "unsloth/objective/teacher.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"

namespace unsloth::objective {
namespace {

std::string_view bytes_of(const std::vector<int32_t>& values, int32_t begin, int32_t end) {
    return {reinterpret_cast<const char*>(values.data() + begin),
            static_cast<std::size_t>(end - begin) * sizeof(int32_t)};
}

template <class Value>
const Value* values_of(const formats::SafetensorsFile& file, const char* name, spec::DType type,
                       const std::vector<int64_t>& shape) {
    const formats::TensorView& tensor = file.at(name);
    if (tensor.dtype != type || tensor.shape != shape || !tensor.is_aligned(alignof(Value)))
        throw Error("teacher.bad-file",
                    cat(file.path().string(), ": ", name, " is ", formats::safetensors_name(tensor.dtype), " ",
                        formats::shape_text(tensor.shape), " and not ", formats::safetensors_name(type), " ",
                        formats::shape_text(shape)),
                    "Write the file again with `unsloth-train score --top_k N`.");
    return reinterpret_cast<const Value*>(tensor.data.data());
}

int64_t first_size(const formats::TensorView& tensor, std::size_t dimensions) {
    return tensor.shape.size() == dimensions ? tensor.shape.back() : 0;
}

std::string text_of(const formats::SafetensorsFile& file, const char* name) {
    const auto found = file.metadata().find(name);
    return found == file.metadata().end() ? "" : found->second;
}

}  // namespace

// --- a model -------------------------------------------------------------------------------------------------------

ops::TeacherRows TeacherModel::rows(const model::MicroBatch& micro, int64_t first, int64_t rows) {
    if (first == 0) model_->forward(*batches_.at(&micro));
    return {.logits_CU = model_->logits(first, rows)};
}

Teacher::Answers TeacherModel::answers(const data::Batch& batch) {
    return [this, &batch](int64_t first, int64_t rows) {
        if (first == 0) model_->forward(batch);
        return ops::TeacherRows{.logits_CU = model_->logits(first, rows)};
    };
}

// --- a file --------------------------------------------------------------------------------------------------------

uint64_t segment_key(const data::Batch& batch, std::size_t segment) {
    const int32_t begin = batch.segments[segment], end = batch.segments[segment + 1];
    ContentHash hash;
    hash.add_field(bytes_of(batch.ids_T, begin, end));
    hash.add_field(bytes_of(batch.targets_T, begin, end));
    return hash.word();
}

TeacherFile::TeacherFile(const std::filesystem::path& path, double temperature, int64_t top_k, int64_t vocab_size,
                         at::Device device)
    : file_(path), device_(device) {
    const std::string name = path.string(), advice = "Write the file again with `unsloth-train score --top_k N`.";
    if (text_of(file_, teacher_file::format) != teacher_file::version)
        throw Error("teacher.bad-file", cat(name, " is no teacher's file"), advice);
    const std::string made_at = text_of(file_, teacher_file::temperature);
    if (std::strtod(made_at.c_str(), nullptr) != temperature)
        throw Error("teacher.other-settings",
                    cat(name, " was made at distill.temperature ", made_at, ", and it is ", temperature),
                    "Take the file's temperature, or write the file again: what all other tokens have together "
                    "depends on it.");
    const int64_t segments = first_size(file_.at(teacher_file::keys), 1);
    const auto* const keys = values_of<int64_t>(file_, teacher_file::keys, spec::DType::i64, {segments});
    const auto* const starts = values_of<int64_t>(file_, teacher_file::starts, spec::DType::i64, {segments + 1});
    stored_ = first_size(file_.at(teacher_file::ids), 2);
    const int64_t n = starts[segments];
    ids_ = values_of<int32_t>(file_, teacher_file::ids, spec::DType::i32, {n, stored_});
    logp_ = values_of<float>(file_, teacher_file::logp, spec::DType::f32, {n, stored_ + 1});
    if (top_k > stored_)
        throw Error("option.out-of-range",
                    cat("distill.top_k is ", top_k, ", and ", name, " has ", stored_, " tokens of each target"),
                    "Take fewer, or write the file again with more.");
    k_ = top_k > 0 ? top_k : stored_;
    if (k_ < 1 || k_ > ops::most_teacher_tokens)
        throw Error(
            "teacher.other-settings",
            cat(name, " has ", stored_, " tokens of each target; 1 to ", ops::most_teacher_tokens, " can be compared"),
            "Set distill.top_k to a part of them.");
    if (const int64_t size = std::atoll(text_of(file_, teacher_file::vocabulary_size).c_str()); size > vocab_size)
        for (int64_t i = 0; i < n * stored_; ++i)
            if (ids_[i] >= vocab_size)
                throw Error(
                    "teacher.vocabulary",
                    cat(name, " names token ", ids_[i], ", and the student's vocabulary ends at ", vocab_size - 1),
                    "Teacher and student need the same vocabulary.");
    for (int64_t s = 0; s < segments; ++s) {
        if (starts[s] < 0 || starts[s] > starts[s + 1])
            throw Error("teacher.bad-file", cat(name, ": the starts fall"), advice);
        segments_.try_emplace(static_cast<uint64_t>(keys[s]), Range{starts[s], starts[s + 1]});
    }
    if (std::any_of(ids_, ids_ + n * stored_, [](int32_t id) { return id < 0; }))
        throw Error("teacher.bad-file", cat(name, ": a token is negative"), advice);
}

/// Where a segment's words begin; -1: they are not there.
int64_t TeacherFile::find(const data::Batch& batch, std::size_t segment) const {
    const int64_t targets = batch.target_starts[segment + 1] - batch.target_starts[segment];
    if (targets == 0) return 0;
    const auto found = segments_.find(segment_key(batch, segment));
    if (found == segments_.end() || found->second.end - found->second.begin != targets) return -1;
    return found->second.begin;
}

void TeacherFile::require(const data::Dataset& rows, const std::string& what) const {
    int64_t missing = 0, first = -1;
    for (int64_t i = 0; i < rows.size(); ++i) {
        const data::Sample sample = rows.sample(i);
        const data::Batch batch = data::make_batch({&sample, 1});
        bool there = true;
        for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) there = there && find(batch, s) >= 0;
        if (there) continue;
        if (missing++ == 0) first = rows.row(i);
    }
    if (missing > 0)
        throw Error("teacher.other-settings",
                    cat(file_.path().string(), ": of ", what, " ", missing, " of ", rows.size(),
                        " rows are not in it, the first of them row ", first, " (from 0)"),
                    "Write it again from this run's configuration, with the teacher as model.path: the same "
                    "files, template, tokenizer and max_seq_length.");
}

TeacherFile::Words TeacherFile::words_of(const data::Batch& batch) const {
    Words words;
    words.ids.reserve(static_cast<std::size_t>(batch.labels * k_));
    words.logp.reserve(static_cast<std::size_t>(batch.labels * (k_ + 1)));
    for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) {
        const int64_t begin = find(batch, s), targets = batch.target_starts[s + 1] - batch.target_starts[s];
        UNSLOTH_CHECK(begin >= 0, "a segment that require() did not see");
        for (int64_t i = begin; i < begin + targets; ++i) {
            const int32_t* const ids = ids_ + i * stored_;
            const float* const logp = logp_ + i * (stored_ + 1);
            words.ids.insert(words.ids.end(), ids, ids + k_);
            words.logp.insert(words.logp.end(), logp, logp + k_);
            if (k_ == stored_) {
                words.logp.push_back(logp[stored_]);
                continue;
            }
            double rest = 0;  // those that are not taken are others, too
            for (int64_t j = k_; j <= stored_; ++j) rest += std::exp(static_cast<double>(logp[j]));
            words.logp.push_back(static_cast<float>(std::log(rest)));
        }
    }
    return words;
}

void TeacherFile::prepare(const data::Batch& batch, model::MicroBatch& micro) {
    const Words words = words_of(batch);
    micro.upload_to(teacher_ids_buffer, words.ids);
    micro.upload_to(teacher_logp_buffer, words.logp);
}

ops::TeacherRows TeacherFile::rows(const model::MicroBatch& micro, int64_t first, int64_t rows) {
    const model::Activations& a = micro.activations();
    return {
        .ids_Ck = a.objective(teacher_ids_buffer).narrow(0, first * k_, rows * k_).view({rows, k_}),
        .logp_Cl = a.objective(teacher_logp_buffer).narrow(0, first * (k_ + 1), rows * (k_ + 1)).view({rows, k_ + 1})};
}

Teacher::Answers TeacherFile::answers(const data::Batch& batch) {
    const Words words = words_of(batch);
    const int64_t n = batch.labels;
    return [ids = at::tensor(words.ids, at::kInt).view({n, k_}).to(device_),
            logp = at::tensor(words.logp, at::kFloat).view({n, k_ + 1}).to(device_)](int64_t first, int64_t rows) {
        return ops::TeacherRows{.ids_Ck = ids.narrow(0, first, rows), .logp_Cl = logp.narrow(0, first, rows)};
    };
}

}  // namespace unsloth::objective
