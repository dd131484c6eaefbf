// Answers to many requests at once, from a model's weights as they are: each pass gives every running sequence its
// next token, and takes in the prompts of others.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "unsloth/generate/chunked_prefill.h"
#include "unsloth/generate/request.h"
#include "unsloth/generate/scheduler.h"
#include "unsloth/model/model.h"
#include "unsloth/ops/event.h"
#include "unsloth/ops/sampling.h"

namespace unsloth::generate {

struct DecoderOptions {
    int64_t rows = 0;         ///< sequences at a time; 0: as the model's plan has room for
    int64_t pass_tokens = 0;  ///< tokens of a pass; 0: likewise
    int64_t context = 0;      ///< longest prompt and answer together; 0: likewise
    /// Tokens of prompts in a pass in which other sequences decode, which wait for them. With the default a pass takes
    /// less than three times one that decodes (`bench generate` measures it). Set more where no user waits for tokens.
    int64_t prefill_tokens = 128;
    ChunkedPrefillPolicy prefill_policy = {};  ///< instead (generate/chunked_prefill.h); may be empty
    /// Sees how long the rows of a pass waited for its tokens: the milliseconds since those of the pass before, or
    /// since it was begun. Not of one in which no row decodes, that was recorded or has images, and never with
    /// ops::Context::deterministic: then nothing may depend on a clock. May be empty.
    std::function<void(const PassWork& pass, double ms)> on_pass = {};
    bool pads = false;           ///< rows to buckets, as on a GPU, which records passes
    bool keeps_prompts = false;  ///< long prompts come again, with more (SchedulerLimits::keeps_prompts)
};

/// Uses the model's planned buffers and cache: no training pass and no other decoder while requests are in flight.
/// Between its answers these may run, and the weights may change: after Model::parameters_changed() or another
/// decoder's passes it recomputes all keys. CheckError where that happens while a sequence is running.
class Decoder {
  public:
    /// The model's plan has a cache (ActivationSizes::cache_tokens). usage Error where that holds no sequence of
    /// `context` tokens.
    Decoder(ops::Context& ctx, model::Model& model, const DecoderOptions& options = {});

    /// Sees each token of each answer; false: the answer ends with it. May be empty.
    using OnToken = std::function<bool(int64_t request, int32_t id)>;
    /// Answers all requests, in their order; `request` counts them from 0. usage Error where one is too long; runtime
    /// Error where logits are not finite. `on_end` (may be empty) gets each answer once it is there.
    using OnEnd = std::function<void(int64_t request, const Completion& answer)>;
    std::vector<Completion> answer(std::vector<Request> requests, const OnToken& on_token = {},
                                   const OnEnd& on_end = {});

    /// Before the first request, on a GPU: issues and records decoding passes of each number of rows, which would else
    /// hold up the first rows of that number. Writes to the cache.
    void record_passes();

    // The same one pass at a time.
    /// The request's number, from 0 over the decoder's life.
    int64_t add(Request request);
    /// The tokens of one pass; false: no request is left. The next pass is issued before they are known, with the
    /// prompts that it takes in, unless a row has penalties or a constraint: the device does not wait for the host.
    bool step(const OnToken& on_token, const OnEnd& on_end);
    /// Drops a request that has not ended, between two steps: no callback sees it any more.
    void cancel(int64_t request);
    /// The answer so far of a request that has not ended; complete up to the token that on_token sees.
    const Completion& so_far(int64_t request) const { return answers_.at(request); }

    /// Requests that come from now on recompute all keys. No request is in flight.
    void forget_keys() { claim_ = 0; }

    const Scheduler& scheduler() const { return scheduler_; }

  private:
    using Clock = std::chrono::steady_clock;
    /// A pass that was issued, and whose tokens are on their way to the host.
    struct Issued {
        std::vector<Sequence*> rows;   ///< for which it chooses a token; nullptr: ended before, or of a prompt
        at::Tensor ids_C, logprobs_C;  ///< on the device
        at::Tensor ids, logprobs;      ///< the host's
        /// Rows of which more is wanted than the chosen token; `of` and `position`: of a prompt's token.
        struct Rated {
            std::size_t row = 0;
            Sequence* of = nullptr;
            std::size_t position = 0;
            int64_t top = 0;
            std::span<const int32_t> listed = {};  ///< Request::rated_ids
        };
        std::vector<Rated> rated;
        at::Tensor rated_logprobs, top_ids, top_logprobs;  ///< the host's: [rated], [rated, k], [rated, k]
        std::shared_ptr<ops::Event> began, there;          ///< on a GPU; began: where passes are timed
        PassWork work;
        Clock::time_point begun;
        bool is_timed = false;  ///< on_pass gets to see it
    };
    void forget_others_keys();
    static void forget(Issued& issued, const Sequence* gone);
    at::Tensor ids_ahead(const std::vector<ScheduledChunk>& parts, int64_t tokens, const at::Tensor& ids) const;
    struct ChosenRows {
        std::vector<ops::RowSampling> rows;
        std::vector<std::pair<std::size_t, TokenConstraint*>> constrained;  ///< the row's number
    };
    ChosenRows chosen_rows(const std::vector<ScheduledChunk>& parts, Issued& issued) const;
    void copy_to_host(Issued& issued) const;
    Issued issue(const std::vector<ScheduledChunk>& parts, const at::Tensor& ids);
    std::optional<std::pair<Issued, std::vector<ScheduledChunk>>> issue_async(const Issued& before);
    double ms_of(const Issued& pass);
    void note_rated(const Issued& issued);
    bool take(Sequence& sequence, const ops::SampledToken& chosen, const OnToken& on_token, const OnEnd& on_end);

    ops::Context& ctx_;
    model::Model& model_;
    bool pads_;
    int64_t context_;
    Scheduler scheduler_;
    uint64_t claim_ = 0, weights_ = 0;       ///< of the cache, and the version of the weights that its keys are of
    uint64_t policy_ = 0;                    ///< another number after each change of these
    std::map<int64_t, Completion> answers_;  ///< of the requests in flight, by number
    std::map<int64_t, spec::Sampling> unstopped_;  ///< by number: what holds before Request::min_new_tokens
    std::optional<Issued> issued_;
    std::function<void(const PassWork&, double)> on_pass_;
    Clock::time_point tokens_came_;  ///< of the pass before
};

/// The number of rows, not less than these, that a pass is recorded for: powers of two, and the middle between two.
int64_t bucket_of(int64_t rows);

/// Bytes of the cache that a token of a sequence takes, over all layers; in_8_bit: as codes.
int64_t cache_bytes_per_token(const spec::ModelSpec& spec, at::ScalarType dtype, bool in_8_bit);

}  // namespace unsloth::generate
