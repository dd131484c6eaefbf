#include "unsloth/planner/step_time.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/planner/exchange_time.h"

namespace unsloth::planner {

/// Of a gated delta net: each token multiplies every value head's state, and a row's chunks wait for each other. The
/// convolution and the norm are passes over memory. Measured with the 9B shape of Qwen3.5 on an H200
/// (gated-delta-nets).
struct NetRates {
    double share;   // of the rate of large products
    double row_us;  // of each token of a row, at least
    double passes;  // over what the convolution and the gated norm read and write
};

namespace {

constexpr NetRates net_forward{0.083, 0.106, 2.0}, net_backward{0.032, 0.225, 3.5};

constexpr double tera = 1e12, giga = 1e9;
constexpr double element = 2;                      // bytes of a 16-bit activation
constexpr double packed = 0.516, dequantized = 2;  // bytes of a parameter in 4 bit with its scales, and in 16
constexpr double logits_passes = 3.5;              // over the logits: written, read twice, written in half
constexpr double codes_passes = 1.5;               // over what is quantized: read, and written in half
constexpr double optimizer_bytes = 40;             // of a trained parameter: values, gradients, moments
constexpr double host_bytes = 34;    // of a parameter that the host updates: the same, and 16-bit values twice
constexpr double host_memory = 115;  // GB/s of a server's 32 CPUs for it (Llama-2-13B in full, two H200s)
constexpr double copy_interference =
    0.015;  // of a hidden copy's time: it takes the memory's bandwidth from what computes
constexpr double backward_attention = 2.5;  // of the forward's operations
// Factors on the time at equal numbers of queries and keys. They apply if a rank's queries are chunks of their keys and
// cuDNN's packed form runs, because the length is no multiple of dense_step. Measured with 1 x 131072 on two H200s,
// before the dense form handled that length.
constexpr double chunk_forward = 1.2, chunk_backward = 1.3;
constexpr int64_t dense_step = 128;
constexpr double together = 0.998;  // of a rank's own rate, where several wait for the slowest: measured with 2 and 4

double as_double(int64_t value) {
    return static_cast<double>(value);
}

/// What a token costs in attention, or in the gated delta net in its place: the mean of all layers.
struct Mixing {
    double read = 0, given = 0;  // rows of the projections before it, and columns of the one after it
    double in = 0, out = 0;      // parameters of these
    double rotated = 0;          // values of queries and keys
    double products = 0;         // of attention's scores: query values times the keys that a token sees
    double nets = 0;             // the share of layers with gated delta nets
};

/// Keys that a token of a row sees, the mean of the row.
double keys_seen(double longest, double window) {
    const double most = window > 0 ? std::min(window, longest) : longest;
    return most - most * most / (2 * longest);
}

Mixing mixing_of(const spec::ModelSpec& m, double longest) {
    Mixing mean;
    const double share = 1 / as_double(m.num_layers);
    for (int64_t i = 0; i < m.num_layers; ++i) {
        for (const spec::Projection p : m.projections_of(i)) {
            if (spec::is_of_mlp(p)) continue;
            const double rows = as_double(m.out_features(p)), columns = as_double(m.in_features(p));
            const bool last = p == spec::Projection::o || p == spec::Projection::delta_out;
            (last ? mean.given : mean.read) += share * (last ? columns : rows);
            (last ? mean.out : mean.in) += share * rows * columns;
        }
        if (m.has_delta(i)) {
            mean.nets += share;
        } else {
            mean.rotated += share * as_double(m.q_size() + m.kv_size());
            const double window = as_double(m.layers[static_cast<std::size_t>(i)].window);
            mean.products += share * as_double(m.q_size()) * keys_seen(longest, window);
        }
    }
    return mean;
}

double parameters_of_layer(const spec::ModelSpec& m) {
    const Mixing mean = mixing_of(m, 1);
    return mean.in + mean.out + 3 * as_double(m.hidden_size) * m.whole_intermediate_size();
}

}  // namespace

double trained_of_layer(const StepWork& work) {
    if (!work.adapters) return parameters_of_layer(work.model);
    return as_double(work.summed_parameters) / as_double(work.model.num_layers) * as_double(work.sharing.stages);
}

double image_bytes(const StepWork& work) {
    return parameters_of_layer(work.model) * (work.in_4bit ? packed : dequantized);
}

double tiles(const StepWork& work) {
    return work.row_tile > 0 ? std::ceil(as_double(work.tokens) / as_double(work.row_tile)) : 1;
}

StepTime::StepTime(Card card, StepWork work) : card_(std::move(card)), work_(std::move(work)) {
    UNSLOTH_CHECK(work_.tokens > 0 && work_.longest > 0 && work_.micro_batches > 0, "a step without tokens");
    head_ = head_ms() + head_exchange_ms(card_, work_);
    once_ = update_ms() + step_exchange_ms(card_, work_);
}

double StepTime::head_ms() const {
    if (!work_.has_head) return 0;
    const double rows = as_double(work_.head_rows), hidden = as_double(work_.model.hidden_size),
                 vocabulary = as_double(work_.model.vocab_size) / as_double(work_.sharing.tp);
    const spec::Codes logits = forward_codes(work_.head_coded), dx = head_dx_codes(work_.head_coded);
    const auto product = [&](spec::Codes codes) {
        return 2 * rows * hidden * vocabulary / (products_tflops(codes, rows) * tera) * 1e3;
    };
    const double over_logits = logits_passes + (dx != spec::Codes::none ? codes_passes : 0),
                 over_rows = 12 + (logits != spec::Codes::none ? codes_passes : 0);
    return product(logits) + product(dx) + (work_.trains_head ? product(spec::Codes::none) : 0) +
           bytes_ms(over_logits * element * rows * vocabulary + over_rows * element * rows * hidden);
}

double StepTime::products_tflops(spec::Codes codes, double rows) const {
    const RateBySize& coded = codes == spec::Codes::int8 ? card_.int8_products : card_.fp8_products;
    return rate_at(codes == spec::Codes::none || coded.empty() ? card_.products : coded, rows);
}

double StepTime::update_ms() const {
    return bytes_ms(optimizer_bytes * as_double(work_.trained_parameters)) +
           host_bytes * as_double(work_.updated_on_host) / (host_memory * giga) * 1e3;
}

double StepTime::bytes_ms(double bytes) const {
    return bytes / (card_.copy * giga) * 1e3;
}

/// A GEMM with `parameters` parameters; with few tokens reading them takes longer.
double StepTime::products_ms(double parameters, double tokens, spec::Codes codes) const {
    const double computing = 2 * parameters * tokens / (products_tflops(codes, tokens) * tera) * 1e3;
    return std::max(computing, bytes_ms(parameters * (codes != spec::Codes::none ? 1 : dequantized)));
}

/// For what follows attention: a GEMM for each tile of rows.
double StepTime::tiled_products_ms(double parameters, spec::Codes codes) const {
    // Where fewer rows were measured faster, that is a matter of power, which a whole step takes alike.
    return std::max(products_ms(parameters, as_double(work_.tokens), codes),
                    tiles(work_) * products_ms(parameters, as_double(work_.tokens) / tiles(work_), codes));
}

/// A gated delta net's part without projections.
double StepTime::net_ms(const NetRates& rates) const {
    if (!work_.model.delta) return 0;
    const spec::DeltaSpec& net = *work_.model.delta;
    constexpr double chunk = 64;
    const double tokens = as_double(work_.tokens), values = as_double(net.values()), keys = as_double(net.key_dim),
                 computing = 4 * (chunk + keys) * values * tokens /
                             (rates.share * products_tflops(spec::Codes::none, tokens) * tera) * 1e3,
                 waiting = rates.row_us * as_double(work_.longest) / 1e3,
                 moved = element * tokens * (2 * as_double(net.channels()) + 3 * values);
    return std::max(computing, waiting) + bytes_ms(rates.passes * moved);
}

LayerTime StepTime::layer(const spec::LayerPlan& plan, const MovedBytes& moved, int64_t in_flight) const {
    const spec::ModelSpec& m = work_.model;
    const Sharing& sharing = work_.sharing;
    const double tokens = as_double(work_.tokens), own_rows = tokens / as_double(sharing.tp),
                 longest = as_double(work_.longest), hidden = as_double(m.hidden_size),
                 middle = m.active_intermediate_size();
    const Mixing mixing = mixing_of(m, longest);
    const double gate_up_parameters = 2 * hidden * middle, down_parameters = hidden * middle,
                 tiled_parameters = mixing.out + gate_up_parameters + down_parameters;
    const spec::Codes forward = forward_codes(work_.coded), dx = dx_codes(work_.coded);
    const double products = products_ms(mixing.in, tokens, forward) + tiled_products_ms(tiled_parameters, forward),
                 dx_products = products_ms(mixing.in, tokens, dx) + tiled_products_ms(tiled_parameters, dx),
                 launches = tiles(work_) * card_.layer_gap_us / 2e3;
    const spec::LayerSteps again = spec::recompute_of(plan.keep);

    // Attention over what each token sees, and gated delta nets.
    const double scores = 4 * tokens * mixing.products;
    const bool ragged = sharing.cp > 1 && work_.longest % (2 * sharing.cp * dense_step) != 0;
    const double attention =
        (ragged ? chunk_forward : 1) * scores / (rate_at(card_.attention_forward, longest) * tera) * 1e3 +
        mixing.nets * net_ms(net_forward);
    const double attention_backward = (ragged ? chunk_backward : 1) * backward_attention * scores /
                                          (rate_at(card_.attention_backward, longest) * tera) * 1e3 +
                                      mixing.nets * net_ms(net_backward);

    // Passes over memory: two norms, RoPE, SwiGLU.
    const double norm = bytes_ms(2 * hidden * element * own_rows),
                 rope = bytes_ms(2 * mixing.rotated * element * tokens),
                 swiglu = bytes_ms(3 * middle * element * tokens);
    const double norm_backward = 3 * norm, swiglu_backward = 2 * swiglu;

    // The adapters' LoRA GEMMs: x·Aᵀ reads inputs; dy·sB and dB read gradients, dA inputs again.
    const double inputs = (2 * hidden * own_rows + (mixing.given + middle) * tokens) * element,
                 gradients = (2 * hidden * own_rows + (mixing.read + 2 * middle) * tokens) * element;
    const double thin_forward = work_.adapters ? inputs / (card_.thin * giga) * 1e3 : 0,
                 thin_backward = work_.adapters ? (inputs + gradients) / (card_.thin * giga) * 1e3 : 0;

    // A layer is dequantized once per pass of all micro-batches in flight.
    const double expanding = work_.in_4bit && !plan.cached ? (packed + dequantized) * parameters_of_layer(m) /
                                                                 (card_.dequantise * giga) * 1e3 / as_double(in_flight)
                                                           : 0;
    LayerTime time;
    time.forward = products + attention + 2 * norm + rope + swiglu + thin_forward + expanding + launches;
    time.backward = dx_products + attention_backward + 2 * norm_backward + rope + swiglu_backward + thin_backward +
                    expanding + launches;
    if (!work_.adapters) time.backward += products;  // gradients of the weights
    if (again.qkv) time.backward += products_ms(mixing.in, tokens, forward) + norm + rope;
    if (again.attention) time.backward += attention;
    if (again.mid) time.backward += tiled_products_ms(mixing.out, forward);
    if (again.gate_up) time.backward += tiled_products_ms(gate_up_parameters, forward) + norm;

    const LayerExchange exchange = layer_exchange(card_, work_, plan, in_flight);
    time.forward += exchange.forward;
    time.backward += exchange.backward;

    const double link = card_.link * giga / 1e3;  // bytes a ms
    double out = 0, in_forward = exchange.copied, in_backward = exchange.copied;
    if (plan.activations_at == spec::Place::host) {
        out = as_double(moved.activations) / link;
        in_backward += out;
        const double codes = work_.inputs_in_fp8 ? bytes_ms((element + 1) * hidden * tokens) : 0;
        time.forward += codes;
        time.backward += codes;
    }
    if (plan.weights_at != spec::Place::device && plan.weights_at != spec::Place::peer) {
        const double rate = plan.weights_at == spec::Place::disk ? card_.disk * giga / 1e3 : link;
        const double fetch = as_double(moved.weights) / rate / as_double(in_flight);
        in_forward += fetch;
        in_backward += fetch;
    }
    if (work_.updated_on_host > 0) {  // gradients leave, and meet those of the micro-batches before
        const double own = 4 * trained_of_layer(work_) / as_double(sharing.summed),
                     back = as_double(work_.micro_batches);
        in_backward += own * (2 * back - 1) / back / link / as_double(in_flight);
    }
    time.forward = std::max({time.forward + copy_interference * (out + in_forward), out, in_forward});
    time.backward = std::max(time.backward + copy_interference * in_backward, in_backward);
    return time;
}

double StepTime::step_ms(double layers_ms) const {
    const Sharing& s = work_.sharing;
    // In addition to its own micro-batches a stage waits until the first one arrives and the last one is back.
    const double others = as_double(s.stages - 1),
                 passes = as_double(work_.micro_batches) + others / as_double(s.chunks),
                 borders = others > 0 ? 2 * others * border_ms(card_, work_) : 0;
    return (passes * (layers_ms + head_) + borders + once_) / (s.ranks > 1 ? together : 1);
}

}  // namespace unsloth::planner
