// Whether a run keeps what its frozen tower makes of images, and how many bytes of it.
#include <algorithm>
#include <unordered_set>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/train/run_setup.h"

namespace unsloth::train {
namespace {

constexpr int64_t share_of_room = 2;  // half of what the plan leaves of the host's memory: files need some, too
constexpr int64_t useful_share = 4;   // a quarter of the images: fewer save little
/// A GPU takes as long for an image alone as for this number of patches of images that are seen together
/// (docs/performance/images.md). What is kept is seen alone, so that a resumed run has the same bits.
constexpr int64_t patches_of_a_pass = 1600;

uint64_t hash_of(const std::string& text) {
    ContentHash hash;
    hash.add(text);
    return hash.word();
}

}  // namespace

/// Asked before the data is read: where true, its images are distinguished by their bytes.
bool RunSetup::may_keep_features() const {
    return opened_.file->spec.vision && config().training.image_features != config::ImageFeatures::recompute;
}

/// Of all images of the rows, each file once.
RunSetup::Features RunSetup::features() const {
    const spec::ModelSpec& spec = opened_.file->spec;
    std::unordered_set<uint64_t> files;
    Features all;
    for (const data::Dataset* rows : {&loader_->dataset(), static_cast<const data::Dataset*>(&eval_rows_)})
        for (int64_t i = 0; i < rows->size(); ++i) {
            const data::Sample row = rows->images(i);
            for (std::size_t k = 0; k < row.sources.size(); ++k) {
                if (!files.insert(hash_of(row.sources[k].data)).second) continue;
                const int64_t patches = row.images.at(k).patches();
                all.files += 1;
                all.patches += patches;
                all.bytes += model::kept_bytes(spec, plan_->layout(), plan_->request().dtype, patches);
            }
        }
    return all;
}

/// After the plan was chosen: features get host memory that it leaves.
void RunSetup::plan_kept_features() {
    if (plan_->request().sizes.patches == 0) {
        if (config().training.image_features == config::ImageFeatures::keep)
            log::warning("training.image_features keep has no effect: no row has an image");
        return;
    }
    if (!kept_) return;
    const bool automatic = config().training.image_features == config::ImageFeatures::automatic;
    const auto leave = [&](const std::string& why) { log::info("images     their features are not kept: ", why); };
    if (plan_->trains_tower()) {
        if (automatic) return leave("the tower is trained");
        throw Error("option.conflict",
                    "training.image_features keep contradicts lora.vision: features change at each step",
                    "Leave one of them out.");
    }
    if (automatic && total_steps_ <= epoch_steps_) return leave("the run is no longer than one epoch");
    const Features all = features();
    model::LoadRequest request = plan_->request();
    const bool one_by_one = opened_.file->spec.vision->tiles.has_value();  // they always are
    if (automatic && request.device.is_cuda() && !one_by_one &&
        all.patches * total_steps_ < patches_of_a_pass * all.files * epoch_steps_)
        return leave("they are small, and seen together they take less time than each alone once");
    const spec::MemoryNeed need = plan_->need();
    const int64_t room = request.device.is_cuda() ? (budget().host - (need.host - need.there)) / request.processes
                                                  : budget().device - need.device;
    const int64_t wanted = all.bytes;
    int64_t bytes = std::clamp<int64_t>(room / share_of_room, 0, wanted);
    if (automatic && bytes < wanted / useful_share) bytes = 0;
    // Also without room: so that a resumed run sees images as it did before, one after another.
    request.kept = kept_;
    request.kept_bytes = bytes;
    *plan_ = plan_->with(std::move(request));
    const std::string taken = cat("of all images they take ", human_bytes(wanted));
    if (bytes == 0)
        leave(cat(taken, ", and host memory has ", human_bytes(room), " left, of which half may be taken"));
    else
        log::info("images     their features stay in host memory, ", human_bytes(bytes), ": ", taken,
                  bytes < wanted ? "; those that do not fit are recomputed" : "");
}

}  // namespace unsloth::train
