// What the other programs say of an upload to the Hugging Face hub.
#include "import/importer.h"
#include "unsloth/core/error.h"

namespace unsloth::import {

void import_upload(Importer& importer, bool id_alone) {
    const auto push = importer.take("push_to_hub");
    const auto id = importer.take_text("hub_model_id");
    const auto is_private = importer.take("hub_private_repo");
    const auto strategy = importer.take_text("hub_strategy");
    const bool uploads = (push && *push == true) || (id_alone && id && !id->empty());
    if (!uploads) {
        if (id) importer.note("hub_model_id", "has no effect: push_to_hub is not true");
        return;
    }
    importer.set(push ? "push_to_hub" : "hub_model_id", "training.push_to_hub", true);
    if (id && !id->empty()) importer.set("hub_model_id", "training.hub_model_id", *id);
    if (is_private)
        importer.set("hub_private_repo", "training.hub_private_repo", *is_private);
    else if (!id_alone)
        importer.note("push_to_hub", "a repository that the upload creates is private (training.hub_private_repo)");
    if (strategy && *strategy != "end")
        importer.note("hub_strategy", cat(*strategy, ": the result is uploaded once, at the end"));
}

}  // namespace unsloth::import
