// A frozen tower over images, forward: from a micro-batch's pixels to what stands for its image tokens.
#pragma once

#include "unsloth/data/batch.h"
#include "unsloth/model/activations.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/vision_spec.h"
#include "unsloth/weights/vision_weights.h"

namespace unsloth::model {

/// Fills b.features and b.deepstack with what stands for the images' tokens, in their order: of as many
/// images at a time as b has room for. Nothing synchronises.
void see_images(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                const VisionBuffers& b, const std::vector<data::Image>& images);

/// Of each image its tokens' place: their first among all image tokens of the micro-batch, in the text, and how many.
struct ImagePlace {
    int64_t feature = 0, token = 0, count = 0;
};
std::vector<ImagePlace> image_places(const spec::VisionSpec& spec, const std::vector<data::Image>& images);

}  // namespace unsloth::model
