#include "unsloth/model/offload.h"

#include "unsloth/ops/coded_rows.h"

namespace unsloth::model {

Offload::Offload(ops::Context& ctx, const Activations& activations, int layers, int lowest, PassCounts& counts)
    : ctx_(ctx), copies_(ctx, layers), activations_(activations), layers_(layers), lowest_(lowest), counts_(counts) {}

void Offload::before_forward(int layer) {
    // This layer writes into the slots of the layer before the previous one (its output into those of the one before
    // that).
    if (moves(layer - 2)) copies_.compute_waits(layer - 2);
}

void Offload::after_forward(int layer) {
    if (!moves(layer)) return;
    if (const ops::CodedMatrix& codes = activations_.moved(layer).input; codes.codes.defined())
        ops::quantize_rows(ctx_, activations_.layer(layer).x_tD, codes);
    copies_.wait_for_compute();
    for (const MovedTensor& moved : activations_.moved(layer).tensors) copies_.copy(moved.device, moved.host);
    ++counts_.moved_out;
    copies_.mark(layer);
}

void Offload::before_backward(int layer) {
    // The layer above is done with the slots that the layer below will use.
    if (const int below = layer - 1; moves(below)) {
        copies_.wait_for_compute();
        for (const MovedTensor& moved : activations_.moved(below).tensors) copies_.copy(moved.host, moved.device);
        ++counts_.moved_back;
        copies_.mark(below);
    }
    if (!moves(layer)) return;
    copies_.compute_waits(layer);
    if (const ops::CodedMatrix& codes = activations_.moved(layer).input; codes.codes.defined())
        ops::dequantize_rows(ctx_, codes, activations_.layer(layer).x_tD);
}

}  // namespace unsloth::model
