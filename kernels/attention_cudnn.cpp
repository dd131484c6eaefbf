#include "kernels/attention_cudnn.h"

// The frontend's JSON dumps are not used; without them it leaves nlohmann alone.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/common/byte_key.h"
#include "kernels/common/launch.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::kernels {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

constexpr int64_t alignment = 256;
constexpr int64_t align(int64_t bytes) {
    return round_up(bytes, alignment);
}

/// Names of a plan's tensors.
enum Uid : int64_t {
    uid_q = 1,
    uid_k,
    uid_v,
    uid_out,
    uid_statistics,
    uid_dout,
    uid_dq,
    uid_dk,
    uid_dv,
    uid_length_q,
    uid_length_kv,
    uid_ragged,  ///< and the following: the ragged offsets, in the order of `ragged_multipliers`
};

/// The ragged offset arrays, by what they serve; a case uses the first 5 (forward) or all.
enum Ragged { ragged_q, ragged_k, ragged_v, ragged_out, ragged_statistics, ragged_dout, ragged_dq, ragged_dkv };

std::string describe(const CudnnCase& c) {
    return cat(c.packed ? "packed " : "dense ", c.unmasked ? "unmasked " : "", c.bottom_right ? "with more keys " : "",
               c.backward ? "backward" : "forward", c.deterministic ? " (deterministic)" : "",
               c.half ? " f16" : " bf16", " B ", c.batch, " S ", c.length, c.keys ? cat(" of ", c.keys) : std::string(),
               c.packed ? cat(" T ", c.tokens) : std::string(), " H ", c.heads, " K ", c.kv_heads, " d ", c.head_dim,
               c.window ? cat(" window ", c.window) : std::string());
}

/// Where the parts of a case's workspace begin. The packed gradients come first: calls for several groups of
/// one batch share them, whatever their B.
struct WorkspaceLayout {
    /// Rows of the packed gradients.
    static int64_t queries_of(const CudnnCase& c) { return c.unmasked ? c.length : c.tokens; }
    static int64_t keys_of(const CudnnCase& c) { return c.unmasked ? c.keys : c.tokens; }

    int64_t dq = 0, dk = 0, dv = 0, offsets = 0, lengths = 0, plan = 0;

    explicit WorkspaceLayout(const CudnnCase& c) {
        if (!c.packed) return;
        if (c.backward) {
            const int64_t keys = keys_of(c) * c.kv_heads;
            dk = dq + align(queries_of(c) * c.heads * c.head_dim * 2);
            dv = dk + align(keys * c.head_dim * 2);
            offsets = dv + align(keys * c.head_dim * 2);
        }
        lengths = offsets + align((c.backward ? 8 : 5) * (c.batch + 1) * static_cast<int64_t>(sizeof(int64_t)));
        plan = lengths + align(2 * c.batch * static_cast<int64_t>(sizeof(int32_t)));
    }
};

/// Builds the graph of one case.
class GraphBuilder {
  public:
    explicit GraphBuilder(const CudnnCase& c) : c_(c), graph_(std::make_shared<fe::graph::Graph>()) {
        graph_->set_io_data_type(c.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        if (c.packed)
            for (int i = 0; i < (c.backward ? 8 : 5); ++i)
                ragged_.push_back(column("offsets", uid_ragged + i, c.batch + 1, fe::DataType_t::INT64));
    }

    std::shared_ptr<fe::graph::Graph> build() {
        const Tensor q = input("q", uid_q, c_.heads, c_.q, ragged_q),
                     k = input("k", uid_k, c_.kv_heads, c_.k, ragged_k);
        const Tensor v = input("v", uid_v, c_.kv_heads, c_.v, ragged_v);
        if (c_.backward) {
            backward(q, k, v);
        } else {
            forward(q, k, v);
        }
        return graph_;
    }

  private:
    Tensor column(const char* name, int64_t uid, int64_t rows, fe::DataType_t type) {
        return graph_->tensor(Tensor_attributes()
                                  .set_name(name)
                                  .set_uid(uid)
                                  .set_dim({rows, 1, 1, 1})
                                  .set_stride({1, 1, 1, 1})
                                  .set_data_type(type));
    }

    void shape(const Tensor& x, int64_t heads, const HeadStrides& strides, Ragged ragged) {
        const bool of_keys = ragged == ragged_k || ragged == ragged_v || ragged == ragged_dkv;
        const int64_t length = of_keys && c_.keys > 0 ? c_.keys : c_.length;
        x->set_dim({c_.batch, heads, length, c_.head_dim})
            .set_stride({length * strides.row, strides.head, strides.row, 1});
        if (c_.packed) x->set_ragged_offset(ragged_[ragged]);
    }

    void shape_statistics(const Tensor& x) {
        x->set_dim({c_.batch, c_.heads, c_.length, 1}).set_data_type(fe::DataType_t::FLOAT).set_uid(uid_statistics);
        if (c_.packed) {
            x->set_stride({c_.heads * c_.length, 1, c_.heads, 1}).set_ragged_offset(ragged_[ragged_statistics]);
        } else {
            x->set_stride({c_.heads * c_.length, c_.length, 1, 1});
        }
    }

    Tensor input(const char* name, int64_t uid, int64_t heads, const HeadStrides& strides, Ragged ragged) {
        const Tensor x = graph_->tensor(Tensor_attributes().set_name(name).set_uid(uid));
        shape(x, heads, strides, ragged);
        return x;
    }

    void output(const Tensor& x, int64_t uid, int64_t heads, const HeadStrides& strides, Ragged ragged) {
        x->set_output(true).set_uid(uid);
        shape(x, heads, strides, ragged);
    }

    /// The options that both directions share: the mask. Where sequences have as many keys as queries the
    /// diagonal starts at the top left, else it ends at the bottom right, which is the same but need not be as fast.
    template <class Options>
    void mask(Options& options) {
        options.set_attn_scale(static_cast<float>(c_.scale));
        if (!c_.unmasked) {
            options
                .set_diagonal_alignment(c_.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                        : fe::DiagonalAlignment_t::TOP_LEFT)
                .set_diagonal_band_right_bound(0);
            if (c_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(c_.window));
        }
        if (c_.packed)
            options.set_padding_mask(true)
                .set_seq_len_q(column("lengths q", uid_length_q, c_.batch, fe::DataType_t::INT32))
                .set_seq_len_kv(column("lengths kv", uid_length_kv, c_.batch, fe::DataType_t::INT32));
    }

    void forward(const Tensor& q, const Tensor& k, const Tensor& v) {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(c_.statistics != 0);
        mask(options);
        auto [out, statistics] = graph_->sdpa(q, k, v, options);
        output(out, uid_out, c_.heads, c_.out, ragged_out);
        if (c_.statistics == 0) return;
        statistics->set_output(true);
        shape_statistics(statistics);
    }

    void backward(const Tensor& q, const Tensor& k, const Tensor& v) {
        const Tensor out = input("out", uid_out, c_.heads, c_.out, ragged_out);
        const Tensor dout = input("dout", uid_dout, c_.heads, c_.dout, ragged_dout);
        const Tensor statistics = graph_->tensor(Tensor_attributes().set_name("statistics"));
        shape_statistics(statistics);
        auto options = fe::graph::SDPA_backward_attributes()
                           .set_name("attention backward")
                           .set_deterministic_algorithm(c_.deterministic != 0);
        mask(options);
        // set_max_total_seq_len_* would bound the scratch by the tokens of all sequences instead of B * S,
        // but it makes cuDNN 9.19 lay its intermediates out by the ragged offsets, where one sequence's last
        // tile overwrites the next sequence's rows: wrong dq, NaN in dk (seen on an H200;
        // tests/gpu/attention_gpu_test.cpp PackedForm).
        auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, out, dout, statistics, options);
        output(dq, uid_dq, c_.heads, c_.dq, ragged_dq);
        output(dk, uid_dk, c_.kv_heads, c_.dk, ragged_dkv);
        output(dv, uid_dv, c_.kv_heads, c_.dv, ragged_dkv);
    }

    const CudnnCase& c_;
    std::shared_ptr<fe::graph::Graph> graph_;
    std::vector<Tensor> ragged_;
};

void check(cudnnStatus_t status, const char* call) {
    if (status != CUDNN_STATUS_SUCCESS)
        throw Error("device.failed", cat("cuDNN failed: ", call, " returned ", cudnnGetErrorString(status)));
}

}  // namespace

struct CudnnAttention::Impl {
    struct Plan {
        std::shared_ptr<fe::graph::Graph> graph;  ///< nullptr: cuDNN has none
        int64_t workspace = 0;
    };

    int device = 0;
    cudnnHandle_t handle = nullptr;
    std::mutex mutex;
    std::unordered_map<CudnnCase, Plan, ByteHash<CudnnCase>, ByteEqual<CudnnCase>> plans;

    const Plan& plan(const CudnnCase& c) {
        const auto found = plans.find(c);
        return found != plans.end() ? found->second : plans.emplace(c, build(c)).first->second;
    }

    Plan build(const CudnnCase& c) {
        const DeviceGuard guard(device);
        const auto start = std::chrono::steady_clock::now();
        Plan plan{GraphBuilder(c).build()};
        fe::error_t status = plan.graph->build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
        int64_t bytes = 0;
        if (status.is_good()) status = plan.graph->get_workspace_size(bytes);
        if (status.is_bad()) {
            log::info("cuDNN has no plan for attention: ", describe(c), ": ", status.get_message());
            return {};
        }
        plan.workspace = WorkspaceLayout(c).plan + align(bytes);
        const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
        log::debug("cuDNN attention plan: ", describe(c), ": ", spent.count(), " ms, workspace ", plan.workspace,
                   " bytes");
        return plan;
    }
};

CudnnAttention::CudnnAttention(int device) : impl_(std::make_unique<Impl>()) {
    const DeviceGuard guard(device);
    impl_->device = device;
    check(cudnnCreate(&impl_->handle), "cudnnCreate");
}

CudnnAttention& CudnnAttention::of(int device) {
    static std::mutex mutex;
    static auto* instances = new std::map<int, std::unique_ptr<CudnnAttention>>;  // never destroyed: see the header
    const std::lock_guard lock(mutex);
    std::unique_ptr<CudnnAttention>& instance = (*instances)[device];
    if (!instance) instance.reset(new CudnnAttention(device));
    return *instance;
}

std::optional<int64_t> CudnnAttention::workspace(const CudnnCase& request) {
    const std::lock_guard lock(impl_->mutex);
    const Impl::Plan& plan = impl_->plan(request);
    return plan.graph ? std::optional(plan.workspace) : std::nullopt;
}

namespace {

char* at_byte(void* workspace, int64_t bytes) {
    return static_cast<char*>(workspace) + bytes;
}

void fill_ragged(const CudnnCase& c, const CudnnPointers& p, const WorkspaceLayout& layout, void* workspace,
                 cudaStream_t stream) {
    RaggedSetup setup;
    setup.offsets = p.offsets;
    setup.key_offsets = p.key_offsets;
    setup.one_queries = p.one_queries;
    setup.one_keys = p.one_keys;
    for (const Ragged of_keys : {ragged_k, ragged_v, ragged_dkv}) setup.of_keys[of_keys] = true;
    setup.sequences = static_cast<int>(p.sequences);
    setup.batch = static_cast<int>(c.batch);
    setup.arrays = c.backward ? 8 : 5;
    setup.multiplier[ragged_q] = c.q.row;
    setup.multiplier[ragged_k] = c.k.row;
    setup.multiplier[ragged_v] = c.v.row;
    setup.multiplier[ragged_out] = c.out.row;
    setup.multiplier[ragged_statistics] = c.heads;
    setup.multiplier[ragged_dout] = c.dout.row;
    setup.multiplier[ragged_dq] = c.dq.row;
    setup.multiplier[ragged_dkv] = c.dk.row;
    setup.offsets_out = reinterpret_cast<int64_t*>(at_byte(workspace, layout.offsets));
    setup.lengths_out = reinterpret_cast<int32_t*>(at_byte(workspace, layout.lengths));
    ragged_setup(setup, stream);
}

}  // namespace

void CudnnAttention::run(const CudnnCase& c, const CudnnPointers& p, void* workspace, cudaStream_t stream) {
    const std::lock_guard lock(impl_->mutex);
    const Impl::Plan& plan = impl_->plan(c);
    UNSLOTH_CHECK(plan.graph != nullptr, "no cuDNN plan for attention: ", describe(c));
    UNSLOTH_CHECK(reinterpret_cast<std::uintptr_t>(workspace) % alignment == 0, "attention: the workspace is not ",
                  alignment, "-byte aligned");
    const WorkspaceLayout layout(c);
    std::unordered_map<int64_t, void*> pack = {{uid_q, p.q}, {uid_k, p.k}, {uid_v, p.v}, {uid_out, p.out}};
    if (c.statistics) pack[uid_statistics] = p.statistics;
    if (c.packed) {
        UNSLOTH_CHECK(p.sequences <= c.batch, "attention: ", p.sequences, " sequences, planned for ", c.batch);
        fill_ragged(c, p, layout, workspace, stream);
        for (int i = 0; i < (c.backward ? 8 : 5); ++i)
            pack[uid_ragged + i] =
                at_byte(workspace, layout.offsets + i * (c.batch + 1) * static_cast<int64_t>(sizeof(int64_t)));
        pack[uid_length_q] = at_byte(workspace, layout.lengths);
        pack[uid_length_kv] = at_byte(workspace, layout.lengths + c.batch * static_cast<int64_t>(sizeof(int32_t)));
    }
    if (c.backward) {
        pack[uid_dout] = p.dout;
        pack[uid_dq] = c.packed ? at_byte(workspace, layout.dq) : p.dq.data;
        pack[uid_dk] = c.packed ? at_byte(workspace, layout.dk) : p.dk.data;
        pack[uid_dv] = c.packed ? at_byte(workspace, layout.dv) : p.dv.data;
    }
    check(cudnnSetStream(impl_->handle, stream), "cudnnSetStream");
    fe::error_t status = plan.graph->execute(impl_->handle, pack, at_byte(workspace, layout.plan));
    if (status.is_bad())
        throw Error("device.failed", cat("cuDNN failed on attention (", describe(c), "): ", status.get_message()));
}

void CudnnAttention::unpack_gradients(const CudnnCase& c, const CudnnPointers& p, int64_t tokens, int64_t keys,
                                      void* workspace, cudaStream_t stream) {
    UNSLOTH_CHECK(
        c.packed && c.backward && tokens <= WorkspaceLayout::queries_of(c) && keys <= WorkspaceLayout::keys_of(c),
        "attention: ", tokens, " tokens, ", keys, " keys, planned for ", describe(c));
    const WorkspaceLayout layout(c);
    const int heads = static_cast<int>(c.heads), kv_heads = static_cast<int>(c.kv_heads);
    copy_gradients({{at_byte(workspace, layout.dq), p.dq, heads, tokens},
                    {at_byte(workspace, layout.dk), p.dk, kv_heads, keys},
                    {at_byte(workspace, layout.dv), p.dv, kv_heads, keys}},
                   static_cast<int>(c.head_dim), stream);
}

}  // namespace unsloth::kernels
