#include "unsloth/core/error.h"
#include "unsloth/model/model.h"

namespace unsloth::model {

at::Tensor Model::forward_layer(const data::Batch& batch, int layer, const at::Tensor& x_TD) {
    UNSLOTH_CHECK(tensor_parallel().alone() && pipeline().alone() && parts_.network.cp.alone(),
                  "ranks share the model's layers");
    UNSLOTH_CHECK(x_TD.defined() == (layer > 0), "layer ", layer, " reads the embeddings only if it is the first");
    MicroBatch& micro = *micro_batches_.front();
    micro.upload(batch);
    PassSchedule actions;
    if (layer > 0)
        micro.activations().layer(layer).x_tD.copy_(x_TD);
    else
        actions.push_back({Action::Part::embedding});
    actions.push_back({.part = Action::Part::layer, .layer = layer});
    walk(actions, {.purpose = Pass::For::scoring});
    return micro.activations().output_of(layer);
}

}  // namespace unsloth::model
