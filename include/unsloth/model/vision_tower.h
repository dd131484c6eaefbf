// A tower over images, forward and backward: from a micro-batch's pixels to the features of its image tokens, and from
// the gradient of these to those of its adapters.
#pragma once

#include "unsloth/data/batch.h"
#include "unsloth/model/activations.h"
#include "unsloth/model/kept_features.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/vision_spec.h"
#include "unsloth/weights/vision_weights.h"

namespace unsloth::model {

/// Fills b.features and b.deepstack with the features of the images' tokens, in their order. Images that share their
/// pixels are seen once. `together`: as many at a time as b has room for; else one after another, so that an image's
/// features are the same bits in whatever pass it is. `adapted`: with the tower's adapters, if it has some. Where b has
/// room for it, what enters the blocks is kept for see_images_backward. With `kept`, of a tower without adapters, one
/// after another: what is kept is copied, and what is seen is kept while there is room. Nothing synchronises.
void see_images(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                const VisionBuffers& b, const std::vector<data::Image>& images, bool together, bool adapted,
                KeptFeatures* kept = nullptr);
/// After see_images of the same images, together and adapted: adds the gradients of the adapters, whose parameters
/// `parameters` are, from those of b.features and b.deepstack, which are in these buffers. A block is recomputed from
/// its input. Nothing synchronises.
void see_images_backward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                         const VisionBuffers& b, const std::vector<data::Image>& images,
                         const weights::Parameters& parameters);

/// Of each image its tokens' place: their first among the features of the micro-batch, in the text, and how many.
struct ImagePlace {
    int64_t feature = 0, token = 0, count = 0;
    int64_t seen = 0;    ///< where the features of the whole image begin
    bool again = false;  ///< an image before has the same pixels, and the same features
};
std::vector<ImagePlace> image_places(const spec::VisionSpec& spec, const std::vector<data::Image>& images);

}  // namespace unsloth::model
