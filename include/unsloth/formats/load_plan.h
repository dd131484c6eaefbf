// A checkpoint checked against the tensor table: where each of a model's tensors comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/bnb8.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/mxfp4.h"
#include "unsloth/spec/precision.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {

/// A matrix or vector whose values are not next to each other: row n, column k is value
/// first + n · row_stride + k · col_stride of a 16/32-bit tensor.
struct StridedTensor {
    const TensorView* of = nullptr;
    int64_t first = 0, row_stride = 0, col_stride = 0;
    bool last = true;  ///< no tensor of the model that is read later has values of the same
};

/// One tensor of the model, and how it is stored.
struct TensorSource {
    spec::TensorRule rule;
    /// A 16/32-bit tensor, or a 4-bit or 8-bit weight, or a part of a 16/32-bit tensor. nullptr: the checkpoint has
    /// none.
    std::variant<const TensorView*, Quant4Weight, Int8Weight, Mxfp4Weight, StridedTensor> stored = nullptr;

    /// nullptr if it is stored in another form.
    const TensorView* plain() const;
    /// As bitsandbytes stores it.
    const Quant4Weight* quant4() const { return std::get_if<Quant4Weight>(&stored); }
    const Int8Weight* int8() const { return std::get_if<Int8Weight>(&stored); }
    const Mxfp4Weight* mxfp4() const { return std::get_if<Mxfp4Weight>(&stored); }
    const StridedTensor* strided() const { return std::get_if<StridedTensor>(&stored); }
    /// What is stored under its name: its values; of a quantised weight the codes, of MXFP4 perhaps with others'; of a
    /// part the tensor.
    const TensorView& tensor() const;

    bool quantised() const { return quant4() != nullptr || mxfp4() != nullptr; }  ///< to 4 bit
    std::size_t stored_bytes() const;
    void drop() const noexcept;
    /// The rows [row_begin, row_end) in fp32 (a vector has one row); `out` holds (row_end - row_begin) * columns
    /// values.
    void read_f32(int64_t row_begin, int64_t row_end, float* out) const;
    int64_t rows() const { return rule.shape.size() > 1 ? rule.shape[0] : 1; }
    int64_t cols() const { return rule.shape.back(); }
    void read_f32(float* out) const { read_f32(0, rows(), out); }
};

/// All tensors of a model, in the order of tensor_table.
class ModelTensors {
  public:
    ModelTensors() = default;
    explicit ModelTensors(std::vector<TensorSource> sources);

    const std::vector<TensorSource>& all() const { return sources_; }
    const TensorSource& linear(spec::LinearId id) const;
    const TensorSource* bias(spec::LinearId id) const;  ///< nullptr: the linear has none
    /// A tensor that is neither linear nor bias; layer -1 for those outside of layers. CheckError when the model has
    /// none.
    const TensorSource& of(spec::TensorRole role, int layer = -1) const;
    /// Of a layer, in the order of the table; its router too.
    const std::vector<spec::TensorRole>& norms(int layer) const { return norms_.at(layer); }
    /// lm_head, or embed_tokens where they are tied.
    const TensorSource& head() const;
    const TensorSource* find(const std::string& hf_name) const;
    /// Those of ModelSpec::vision, in the order of spec::vision_tensors, as matrices or vectors.
    std::vector<TensorSource> vision;
    /// The stored tensors of other parts of the model that this one is a part of; those of `vision` among them.
    std::vector<const TensorView*> others;
    /// Where one tensor holds all experts of a layer: each one's rows, or values, which sources point to.
    std::shared_ptr<const std::deque<TensorView>> rows_of_all_experts;
    /// Gives a tensor of the model, which is 16/32-bit from now on, the values of another one of its shape.
    void replace(const std::string& hf_name, const TensorView& tensor);

    int64_t parameters() const;         ///< elements of the weights as the model computes with them
    std::size_t stored_bytes() const;   ///< with the 4-bit weights' companions
    int64_t quantised_linears() const;  ///< of the layers, in 4 bit
    int64_t int8_linears() const;       ///< of the layers

  private:
    std::vector<TensorSource> sources_;
    std::map<std::string, std::size_t> index_;
    std::map<spec::LinearId, std::size_t> linears_, biases_;
    std::map<int, std::vector<spec::TensorRole>> norms_;  ///< by layer
};

/// The type that a tensor has in its file; `automatic` for one that is no matrix.
spec::WeightType stored_type(const TensorSource& source);

/// The types that a run holds its frozen matrices in.
struct HeldTypes {
    bool load_in_4bit = false, load_in_8bit = false;  ///< 16/32-bit linears become NF4, or INT8
    spec::PrecisionMap precision;                     ///< before both, and from any type
    /// What this tensor becomes; stored_type() where nothing is said.
    spec::WeightType of(const TensorSource& source, const spec::ModelSpec& model) const;
    bool operator==(const HeldTypes&) const = default;
};

/// Checks every rule of tensor_table(spec) against the checkpoint: a matrix is a 4-bit or 8-bit weight or a 16/32-bit
/// tensor of the rule's shape, everything else 16/32-bit. Input Error that names the tensors (up to five of each kind)
/// when some are missing, unknown, of another shape or of a type that cannot be used.
ModelTensors resolve_tensors(const Checkpoint& checkpoint, const spec::ModelSpec& spec);

/// What config.json says, and where the tensors say more: their type where it names none, and that embeddings are not
/// tied where it says so and lm_head.weight holds other values (transformers 5 decides so; logged). Errors as
/// read_model_spec.
spec::ModelSpec model_spec_of(const Checkpoint& checkpoint);

/// A model on disk: its config, its mapped weights, and where each tensor is stored. Movable; views stay valid.
struct WeightFile {
    spec::ModelSpec spec;
    std::optional<QuantizationConfig> quantization;
    Checkpoint checkpoint;
    ModelTensors tensors;
    /// Tensors of an adapter that replace the model's embeddings or head; null: there are none.
    std::shared_ptr<const SafetensorsFile> stand_ins;

    /// `path` as for Checkpoint::open. Input Error as for read_model_spec, Checkpoint::open and resolve_tensors.
    /// `rope_scaling`: Hugging Face's object as text, instead of config.json's (set_rope_scaling); empty or {}: none.
    /// `adapter`: a folder, empty: none. The embeddings and the head that PEFT stored there, though modules_to_save
    /// does not name them, stand in for the model's, frozen, as PEFT loads them; input Error where they do not fit.
    static WeightFile open(const std::string& path, const std::string& rope_scaling = {},
                           const std::filesystem::path& adapter = {});

    /// Tensors of stand_ins that `tensors` takes, under the adapter's names.
    std::vector<const TensorView*> stand_in_tensors() const;

  private:
    void take_stand_ins(const std::filesystem::path& adapter);
};

}  // namespace unsloth::formats
