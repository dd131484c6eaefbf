// One micro-batch on the device: its inputs and its activations. Several may be in flight.
#pragma once

#include <memory>

#include "unsloth/data/batch.h"
#include "unsloth/model/activations.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/offload.h"
#include "unsloth/model/vision_tower.h"

namespace unsloth::model {

class MicroBatch {
  public:
    /// `spec` must live as long; `lowest_layer`: where backward passes end; `counts`: what is moved is counted there;
    /// `slices`: how many equal ones the tokens have.
    MicroBatch(ops::Context& ctx, const spec::ModelSpec& spec, std::unique_ptr<Activations> activations,
               int lowest_layer, PassCounts& counts, int slices = 1);

    /// Puts the batch's ids, targets and segments on the device, cuts the activations to its tokens and makes its RoPE
    /// table. Padding tokens up to a multiple of the slices follow the segments. Images are kept for the tower.
    /// CheckError for some that were not planned for. Nothing synchronises.
    void upload(const data::Batch& batch);
    /// After upload(): rows and offsets that dropout's masks and noise are drawn from.
    void upload_rows(const data::Batch& batch);
    /// After upload(): of each token the noise's magnitude, alpha / sqrt(tokens of its segment x hidden size).
    void upload_noise(const data::Batch& batch, double alpha);
    /// After upload(): the order in which the embeddings' gradient is summed, of the slice's tokens. CheckError where
    /// it is empty.
    void upload_token_order(const data::TokenOrder& order);
    /// After upload(): the first values of the objective's buffer of that number.
    void upload_to(std::size_t buffer, const std::vector<int32_t>& values);
    void upload_to(std::size_t buffer, const std::vector<float>& values);
    /// After upload() of rows of which the first resume from keys in the cache: `slots_T` is where each token's are
    /// put. `adapter_T`: which of several adapters each has; empty: there is one. `states`: CachedPass::states.
    void forward_with_kv_cache(const data::Batch& batch, const std::vector<int32_t>& slots_T,
                               const std::vector<int32_t>& adapter_T, ops::PagedRows rows, std::vector<int32_t> states);

    /// After that, of a model whose layers cross: what the tokens see of features in the cache. `images`: those that
    /// the tower sees now, at the sight's places.
    void see_cached(std::shared_ptr<const ImageSight> sight, std::vector<data::Image> images);

    int64_t tokens() const { return tokens_; }    ///< added ones among them
    int64_t targets() const { return targets_; }  ///< rows with one
    int64_t segments() const { return segments_; }
    int64_t distinct_ids() const { return distinct_ids_; }  ///< with a token order
    const std::vector<data::Image>& images() const { return images_; }
    /// Of each image; not those of see_cached(), which the sight places.
    const std::vector<ImagePlace>& places() const { return places_; }
    const TokenInputs& inputs() const { return inputs_; }
    const Activations& activations() const { return *activations_; }
    /// nullptr: what layers keep stays on the device.
    Offload* offload() { return offload_.get(); }

  private:
    void take_images(const data::Batch& batch);
    void require_planned(const data::Image& image) const;
    void take_sight(std::shared_ptr<const ImageSight> sight);
    void upload_shared_keys(const data::Batch& batch);
    void upload_keys(const std::vector<int32_t>& keys, const std::vector<int32_t>& offsets, int64_t all_keys);
    void upload_chain(const data::ContextSlice& context);
    void make_rope_tables(const data::Batch& batch, int64_t longest_position);

    ops::Context& ctx_;
    const spec::ModelSpec& spec_;
    std::unique_ptr<Activations> activations_;
    std::unique_ptr<Offload> offload_;
    int slices_;
    TokenInputs inputs_;
    std::vector<data::Image> images_;
    std::vector<ImagePlace> places_;
    int64_t tokens_ = 0, targets_ = 0, segments_ = 0, distinct_ids_ = 0;
    struct Rope {
        double scaling = 1.0;
        int64_t length = -1;  ///< what the frequencies were computed for (dynamic RoPE)
    };
    std::vector<Rope> ropes_;  ///< by ModelSpec::ropes
};

}  // namespace unsloth::model
