// A base model with an adapter merged into it, or pruned: the values of its tensors, some rows at a time.
//
// Source: Hu et al., "LoRA" (2021), section 4.1: W' = W + scale · B·A; Liu et al., "DoRA" (2024), equation 5, for rows
// with a magnitude: W' = m / ‖W + scale · B·A‖ · (W + scale · B·A); PEFT's merge_and_unload for what modules_to_save
// replace. Everything is computed in fp32; a 4-bit base counts with its dequantised values in fp32, never rounded to
// 16 bit in between.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"
#include "unsloth/formats/pruning.h"
#include "unsloth/spec/serve_grid_host.h"

namespace unsloth::formats {

using spec::add_low_rank;

/// Gives every row of w[rows, cols] the norm magnitude[row]; a row of zeros stays.
void set_row_norms(const float* magnitude, int64_t rows, int64_t cols, float* w);

/// One tensor of a merged model. Holds what it needs in fp32: the adapter's A and B, and the base's 4-bit codes where
/// they are made; the rest stays mapped.
class MergedTensor {
  public:
    const spec::TensorRule& rule() const { return rule_; }
    int64_t rows() const { return rule_.shape.size() > 1 ? rule_.shape[0] : 1; }
    int64_t cols() const { return rule_.shape.back(); }

    /// out[(row_end - row_begin) * cols()] = the rows [row_begin, row_end) in fp32 (a vector has one row). May be
    /// called for disjoint rows from several threads.
    void read_f32(int64_t row_begin, int64_t row_end, float* out) const;
    /// Tells the system that these rows were consumed; with the last row, also what belongs to no row alone.
    void drop(int64_t row_begin, int64_t row_end) const noexcept;

  private:
    friend class MergedModel;
    void read_base(int64_t row_begin, int64_t row_end, float* out) const;
    void round_values(int64_t rows, float* values) const;
    spec::TensorRule rule_;
    const TensorSource* base_ = nullptr;                        ///< nullptr where a saved module replaces it
    std::shared_ptr<const Quant4Owned> quantised_;              ///< the base's values rounded to 4 bit
    spec::WeightType rounds_to_ = spec::WeightType::automatic;  ///< other types that its values are rounded to
    const TensorView* saved_ = nullptr;                         ///< of modules_to_save
    int64_t r_ = 0;
    float scale_ = 0.0F;
    std::vector<float> a_, b_;                         ///< [r, cols], [rows, r]
    std::shared_ptr<const spec::FixedLowRank> fixed_;  ///< of both, where rows are rounded to a grid
    std::vector<float> magnitude_;                     ///< [rows]; empty: none
    spec::ServeGrid grid_ = spec::ServeGrid::none;     ///< that rows are rounded to; nf4's blocks are of no rows
    /// Of the base's rows and columns those that remain; nullptr: all. Not both.
    const std::vector<int64_t>*kept_rows_ = nullptr, *kept_cols_ = nullptr;
    const Pruning* pruning_ = nullptr;  ///< nullptr: nothing is pruned
};

/// A tensor of another part of the base's model: written as it is but for a tower's linears that are quantised or have
/// an adapter.
class OtherTensor {
  public:
    const TensorView& stored() const { return *stored_; }  ///< in the base
    bool as_stored() const { return source_ == nullptr; }
    /// What is written, in `type` where it is not as stored.
    TensorDecl declare(spec::DType type) const;
    /// In fp32, of one that is not as stored.
    std::vector<float> read_f32() const;

  private:
    friend class MergedModel;
    const TensorView* stored_ = nullptr;
    const TensorSource* source_ = nullptr;
    const spec::TowerLora* lora_ = nullptr;  ///< nullptr: it has none
    const SafetensorsFile* adapter_ = nullptr;
};

/// The tensors of a base model with an adapter, of what pruning leaves of it, or of the base alone. Refers to them;
/// they must outlive it.
class MergedModel {
  public:
    /// `adapter` may be nullptr. `held`: matrices of the base take the values that training with such types gave them.
    /// `grid`: values of the layers' linears are rounded to it, but for nf4, which is for the writer to make.
    /// usage Error where they do not fit the model.
    MergedModel(const WeightFile& base, const Adapter* adapter, HeldTypes held = {},
                spec::ServeGrid grid = spec::ServeGrid::none);
    MergedModel(const WeightFile& base, const Pruning& pruning);

    /// The base's, but for what was pruned and for tie_word_embeddings: modules_to_save trains a copy of its own at
    /// each end of a tied model (as PEFT does), so the result is not tied any more.
    const spec::ModelSpec& spec() const { return spec_; }
    /// Of other parts of the base's model. `keeps_4bit`: what is in 4 bit, without an adapter, is written so. Input
    /// Error where a part that is not read is quantised.
    std::vector<OtherTensor> others(bool keeps_4bit) const;
    /// Modules of the tower that hold no linear in 4 bit then; none without a tower.
    std::vector<std::string> plain_tower_modules(bool keeps_4bit) const;
    const WeightFile& base() const { return base_; }
    spec::ServeGrid grid() const { return grid_; }
    /// The base's config.json, with its lists of one entry a layer as the result needs them.
    std::string original_config() const;
    const std::vector<spec::TensorRule>& tensors() const { return tensors_; }
    MergedTensor open(const spec::TensorRule& rule) const;
    int64_t changed_tensors() const;
    /// The base's 4-bit weight where it is this tensor unchanged, because the adapter does not affect it. nullptr
    /// otherwise.
    const Quant4Weight* unchanged_quant4(const spec::TensorRule& rule) const;
    /// The MXFP4 weight of the base that remains of this pruned model's experts as it is. nullptr otherwise.
    const Mxfp4Weight* unchanged_mxfp4(const spec::TensorRule& rule) const;

  private:
    const spec::TowerLora* adapter_of(const TensorSource& of_tower) const;
    bool stays_in_4bit(const TensorSource& of_tower, bool keeps_4bit) const;
    const TensorSource* source_of(const spec::TensorRule& rule) const;
    void cut(MergedTensor& tensor) const;
    void read_factors(MergedTensor& tensor, const spec::LoraModule& lora) const;
    const TensorView* saved_module(const spec::TensorRule& rule) const;
    spec::LoraModule lora_of(const spec::TensorRule& rule) const;

    const WeightFile& base_;
    const Adapter* adapter_ = nullptr;
    const Pruning* pruning_ = nullptr;
    HeldTypes held_;
    spec::ServeGrid grid_ = spec::ServeGrid::none;
    spec::ModelSpec spec_;
    std::vector<spec::TensorRule> tensors_;
};

/// What the base of an adapter was while it was trained.
enum class TrainedOn : uint8_t {
    unknown,
    plain,
    file_4bit,
    quantised_while_loading,
    file_8bit,
    quantised_to_8bit_while_loading
};

/// Whether the run that wrote this folder had model.precision; false where it does not say.
bool trained_with_precision(const std::filesystem::path& adapter_folder);

/// From the adapter's base_model_name_or_path where that still leads to a checkpoint (else from its name: "…4bit",
/// "…8bit"), and from run_config.json in its folder, which says whether a run of this program quantised while loading.
TrainedOn trained_on(const std::filesystem::path& adapter_folder, const PeftConfig& adapter);

}  // namespace unsloth::formats
