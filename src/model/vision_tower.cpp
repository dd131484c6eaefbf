// Legend: P patches, C the tower's hidden size, H heads, d head_dim, F intermediate, N tokens, M values of a token's
// patches, D the text model's hidden size.
#include "unsloth/model/vision_tower.h"

#include <vector>

#include "model/patches.h"
#include "model/tower_parts.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/range_attention.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"
#include "unsloth/ops/vision.h"

namespace unsloth::model {
namespace {

/// The way of some images through the tower.
class Sight {
  public:
    Sight(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w, const VisionBuffers& b,
          const SeenTogether& some, bool adapted)
        : ctx_(ctx),
          spec_(spec),
          w_(w),
          b_(b),
          of_(spec, some.images),
          patches_(of_.count),
          feature_(some.feature),
          u_(adapted ? b.u : at::Tensor()),
          windows_(ops::own_ranges(of_.order.windows)),
          whole_(ops::own_ranges(of_.images)),
          x_PC_(keeps() ? block_input(spec, b, 0, feature_, patches_) : matrix_of(b.x, patches_, spec.hidden_size)) {
        embed_patches();
    }

    /// Features of the images' tokens [feature, feature + N) of the micro-batch.
    void pass() {
        const int64_t tokens = spec_.tokens_of(patches_), feature = feature_;
        for (int64_t layer = 0; layer < spec_.depth; ++layer) {
            if (keeps()) {
                const at::Tensor next_PC = block_input(spec_, b_, layer + 1, feature, patches_);
                ops::copy_2d(ctx_, x_PC_, next_PC);
                x_PC_ = next_PC;
            }
            block(w_.blocks[static_cast<std::size_t>(layer)], spec_.attends_in_windows(layer));
            for (std::size_t i = 0; i < spec_.deepstack.size(); ++i)
                if (spec_.deepstack[i] == layer)
                    merge(w_.deepstack[i], spec_.merged_size(), b_.deepstack[i].narrow(0, feature, tokens));
        }
        merge(w_.merger, spec_.hidden_size, b_.features.narrow(0, feature, tokens));
    }

  private:
    /// A backward pass follows.
    bool keeps() const { return b_.backward.inputs.defined(); }

    void multiply(const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out, bool adds = false) {
        model::multiply(ctx_, w, x, out, adds, u_);
    }

    /// Pixels in the tower's order become the first values; adds what follows from the positions of patches.
    void embed_patches() {
        copy_values(of_.pixels, b_.bytes);
        const int64_t values = spec::VisionSpec::frames * spec_.patch_bytes();
        const at::Tensor values_PK = matrix_of(b_.wide, patches_, values);
        ops::patch_values(ctx_, matrix_of(b_.bytes, patches_, spec_.patch_bytes()), w_.value_CB,
                          spec::VisionSpec::frames, values_PK);
        multiply({w_.patch_CK, w_.patch_bias_C}, values_PK, x_PC_);
        if (spec_.position_side > 0) {
            copy_values(of_.learned.index, b_.index);
            copy_values(of_.learned.share, b_.share);
            ops::add_interpolated(ctx_, w_.positions_NC, matrix_of(b_.index, patches_, 4),
                                  matrix_of(b_.share, patches_, 4), x_PC_);
        }
        make_patch_rotation(ctx_, spec_, w_, b_, of_);
    }

    void normalise(const weights::VisionNorm& w, const at::Tensor& x, const at::Tensor& y) {
        if (spec_.rms_norm)
            ops::rms_norm_forward(ctx_, x, w.weight, spec_.norm_eps, y, b_.rstd.narrow(0, 0, x.size(0)));
        else
            ops::layer_norm_forward(ctx_, x, w.weight, w.bias, spec_.norm_eps, y);
    }

    void block(const weights::VisionBlock& w, bool in_windows) {
        const int64_t c = spec_.hidden_size, f = spec_.inner_size(), heads = spec_.num_heads;
        const int64_t d = spec_.head_dim(), pairs = d / 2;
        const at::Tensor h_PC = matrix_of(b_.h, patches_, c), qkv_PN = matrix_of(b_.wide, patches_, 3 * c);
        normalise(w.norm1, x_PC_, h_PC);
        multiply(w.qkv, h_PC, qkv_PN);
        ops::rope_apply(ctx_, heads_of(qkv_PN, 0, 2 * heads, d), matrix_of(b_.cos, patches_, pairs),
                        matrix_of(b_.sin, patches_, pairs), /*backward=*/false);
        ops::range_attention_forward(ctx_, tower_attention(spec_), in_windows ? windows_ : whole_,
                                     heads_of(qkv_PN, 0, heads, d), heads_of(qkv_PN, c, heads, d),
                                     heads_of(qkv_PN, 2 * c, heads, d), heads_of(h_PC, 0, heads, d));
        multiply(w.proj, h_PC, x_PC_, /*adds=*/true);
        normalise(w.norm2, x_PC_, h_PC);
        const at::Tensor inner_PF = matrix_of(b_.wide, patches_, (spec_.gated_mlp ? 2 : 1) * f);
        multiply(w.in, h_PC, inner_PF);
        if (spec_.gated_mlp) {
            const at::Tensor act_PF = matrix_of(b_.h, patches_, f);
            ops::swiglu_forward(ctx_, inner_PF, act_PF);
            return multiply(w.out, act_PF, x_PC_, /*adds=*/true);
        }
        ops::gelu(ctx_, inner_PF, ops::Gelu::tanh);
        multiply(w.out, inner_PF, x_PC_, /*adds=*/true);
    }

    /// `normed`: values that the norm takes at a time, a patch's or all of a token's.
    void merge(const weights::VisionMerger& w, int64_t normed, const at::Tensor& out_ND) {
        const int64_t tokens = out_ND.size(0), merged = spec_.merged_size(),
                      rows = patches_ * spec_.hidden_size / normed;
        normalise(w.norm, x_PC_.view({rows, normed}), matrix_of(b_.h, rows, normed));
        const at::Tensor inner_NM = matrix_of(b_.wide, tokens, merged);
        multiply(w.in, matrix_of(b_.h, tokens, merged), inner_NM);
        ops::gelu(ctx_, inner_NM, ops::Gelu::erf);
        if (spec_.window == 0) return multiply(w.out, inner_NM, out_ND);
        const at::Tensor in_windows_ND = matrix_of(b_.h, tokens, spec_.out_size);
        multiply(w.out, inner_NM, in_windows_ND);
        ops::scatter_rows(ctx_, in_windows_ND, b_.tokens.narrow(0, 0, tokens), out_ND);
    }

    ops::Context& ctx_;
    const spec::VisionSpec& spec_;
    const weights::VisionWeights& w_;
    const VisionBuffers& b_;
    const Patches of_;
    const int64_t patches_, feature_;
    const at::Tensor u_;  ///< undefined: without adapters
    const std::vector<ops::AttentionRange> windows_, whole_;
    at::Tensor x_PC_;
};

}  // namespace

std::vector<ImagePlace> image_places(const spec::VisionSpec& spec, const std::vector<data::Image>& images) {
    std::vector<ImagePlace> places;
    int64_t next = 0;
    for (const data::Image& image : images) {
        const int64_t count = spec.tokens_of(image.patches()), before = image.cached;
        int64_t seen = next;
        for (std::size_t i = 0; i < places.size() && seen == next; ++i)
            if (images[i].same_as(image)) seen = places[i].seen;
        places.push_back({seen + before, image.first, count - before, seen, seen != next});
        if (seen == next) next += count;
    }
    return places;
}

std::vector<SeenTogether> seen_together(const spec::VisionSpec& spec, const VisionBuffers& b,
                                        const std::vector<data::Image>& images, bool together) {
    const std::vector<ImagePlace> places = image_places(spec, images);
    const int64_t room = b.x.numel() / spec.hidden_size;
    std::vector<SeenTogether> all;
    int64_t patches = 0;  // of the last ones
    for (std::size_t i = 0; i < images.size(); ++i) {
        if (places[i].again) continue;
        if (all.empty() || !together || patches + images[i].patches() > room) {
            all.push_back({{}, places[i].seen});
            patches = 0;
        }
        all.back().images.push_back(images[i]);
        patches += images[i].patches();
    }
    return all;
}

void see_images(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                const VisionBuffers& b, const std::vector<data::Image>& images, bool together, bool adapted,
                KeptFeatures* kept) {
    const ops::Region region(ctx, "tower");
    for (const SeenTogether& some : seen_together(spec, b, images, together && kept == nullptr)) {
        std::vector<at::Tensor> features;  // of one image
        if (kept != nullptr) {
            const int64_t count = spec.tokens_of(some.images.front().patches());
            features.push_back(b.features.narrow(0, some.feature, count));
            for (const at::Tensor& more : b.deepstack) features.push_back(more.narrow(0, some.feature, count));
            if (kept->fetch(some.images.front().content, features)) continue;
        }
        Sight(ctx, spec, w, b, some, adapted && w.adapted()).pass();
        if (kept != nullptr) kept->keep(some.images.front().content, features);
    }
}

}  // namespace unsloth::model
