// Legend: P patches, C the tower's hidden size, N tokens, M values of a token's patches, D the text model's hidden
// size.
#include "model/patches.h"
#include "model/tower_blocks.h"
#include "unsloth/model/vision_tower.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

/// The way of some images back through the tower.
class SightBackward {
  public:
    SightBackward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                  const VisionBuffers& b, const SeenTogether& some, const weights::Parameters& parameters)
        : ctx_(ctx),
          spec_(spec),
          w_(w),
          b_(b),
          back_(b.backward),
          of_(spec, some.images),
          patches_(of_.count),
          feature_(some.feature),
          windows_(ops::own_ranges(of_.order.windows)),
          whole_(ops::own_ranges(of_.images)),
          blocks_(ctx, spec, b, parameters, of_.count) {
        make_patch_rotation(ctx, spec, w, b, of_);
    }

    void pass() {
        const int64_t tokens = spec_.tokens_of(patches_);
        blocks_.g().zero_();
        merge(w_.merger, spec_.hidden_size, spec_.depth, b_.features.narrow(0, feature_, tokens));
        for (int64_t layer = spec_.depth - 1; layer >= 0; --layer) {
            for (std::size_t i = 0; i < spec_.deepstack.size(); ++i)
                if (spec_.deepstack[i] == layer)
                    merge(w_.deepstack[i], spec_.merged_size(), layer + 1, b_.deepstack[i].narrow(0, feature_, tokens));
            blocks_.block(w_.blocks[static_cast<std::size_t>(layer)], block_input(spec_, b_, layer, feature_, patches_),
                          spec_.attends_in_windows(layer) ? windows_ : whole_, /*lowest=*/layer == 0);
        }
    }

  private:
    /// Adds the gradient of what leaves the block before `block`, from that of the merger's tokens.
    void merge(const weights::VisionMerger& w, int64_t normed, int64_t block, const at::Tensor& dout_ND) {
        const int64_t tokens = dout_ND.size(0), merged = spec_.merged_size(), c = spec_.hidden_size,
                      count = patches_ * c / normed;
        const at::Tensor x = block_input(spec_, b_, block, feature_, patches_).view({count, normed});
        const auto of_tokens = [&](const at::Tensor& flat, int64_t columns) {
            return matrix_of(flat, tokens, columns);
        };
        const at::Tensor h_NM = of_tokens(b_.h, merged), inner_NM = of_tokens(b_.wide, merged),
                         act_NM = of_tokens(back_.act, merged), dact_NM = of_tokens(back_.dact, merged),
                         dh_NM = of_tokens(back_.dh, merged);
        blocks_.normalise(w.norm, x, h_NM.view({count, normed}), b_.rstd);
        blocks_.multiply(w.in, h_NM, inner_NM);
        blocks_.activate(inner_NM, ops::Gelu::erf, act_NM);
        at::Tensor dy_ND = dout_ND;
        if (spec_.window > 0) {
            dy_ND = of_tokens(back_.dqkv, spec_.out_size);
            ops::gather_rows(ctx_, dout_ND, b_.tokens.narrow(0, 0, tokens), dy_ND);
        }
        blocks_.multiply_backward(w.out, dy_ND, act_NM, dact_NM);
        ops::gelu_backward(ctx_, inner_NM, ops::Gelu::erf, dact_NM);
        blocks_.multiply_backward(w.in, dact_NM, h_NM, dh_NM);
        blocks_.normalise_backward(w.norm, dh_NM.view({count, normed}), x, b_.rstd, blocks_.g().view({count, normed}));
    }

    ops::Context& ctx_;
    const spec::VisionSpec& spec_;
    const weights::VisionWeights& w_;
    const VisionBuffers& b_;
    const TowerBackward& back_;
    const Patches of_;
    const int64_t patches_, feature_;
    const std::vector<ops::AttentionRange> windows_, whole_;
    const BlocksBackward blocks_;
};

}  // namespace

void see_images_backward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                         const VisionBuffers& b, const std::vector<data::Image>& images,
                         const weights::Parameters& parameters) {
    const ops::Region region(ctx, "tower backward");
    for (const SeenTogether& some : seen_together(spec, b, images, /*together=*/true))
        SightBackward(ctx, spec, w, b, some, parameters).pass();
}

}  // namespace unsloth::model
