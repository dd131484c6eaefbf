// Which tokens of which sequences a pass computes, and which pages of the cache hold their keys: continuous batching.
// Sequences join and leave at each pass; long prompts are prefilled in chunks with those that decode.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "unsloth/generate/block_allocator.h"
#include "unsloth/generate/image_slots.h"
#include "unsloth/generate/request.h"
#include "unsloth/generate/state_places.h"

namespace unsloth::generate {

/// What a pass in which rows decode takes in of prompts.
struct PrefillChunk {
    int64_t tokens = 1;  ///< one at least
    bool as_decode_rows =
        false;  ///< each attends over its keys by itself, as a row that decodes does: one kind of pass for all
};
/// By the number of rows that decode, their keys together, and the tokens of the prompt that are cached.
using ChunkedPrefillPolicy = std::function<PrefillChunk(int64_t rows, int64_t keys, int64_t cached)>;

struct SchedulerLimits {
    int64_t rows = 1;                          ///< sequences in a pass
    int64_t pass_tokens = 1;                   ///< of a pass, `rows` at least
    int64_t prefill_tokens = 1;                ///< of prompts in a pass in which others decode: what these wait for
    int64_t context = 1;                       ///< prompt and answer of one sequence
    bool shares_prefixes = true;               ///< pages of equal beginnings are computed once
    ChunkedPrefillPolicy prefill_policy = {};  ///< instead of prefill_tokens; may be empty
    int64_t segments = 0;                      ///< of a pass, with that policy; each prompt token as decode row is one
    bool keeps_states = false;  ///< sequences have places for states (Sequence::state); prompts go in as their own rows
    int64_t snapshots = 0;      ///< of such models: places after those of `rows` sequences (StatePlaces)
    bool keeps_prompts = false;  ///< of such models: a snapshot also of long prompts that no known request shares
    int64_t image_slots = 0;     ///< of models whose layers cross to images; 0: images are tokens among the others
};

/// A request in flight.
struct Sequence {
    int64_t number = 0;  ///< as add() gave it
    Request request;
    std::vector<int32_t> ids;                       ///< the prompt, then the answer so far
    int64_t cached = 0;                             ///< of them, those with keys in the cache
    int64_t shared = 0;                             ///< tokens whose keys were cached when it was first admitted
    std::vector<int32_t> pages;                     ///< of the cache, with their keys
    std::vector<BlockAllocator::PrefixHash> texts;  ///< of the whole pages, from the front
    uint64_t policy = 0;                            ///< Scheduler::use_policy, which made its keys
    int64_t slot = -1;                              ///< the first of its images' (ImageSlots); -1: it has none
    // Of a model with gated delta nets, places of what these keep (StatePlaces); -1: none.
    int32_t state = -1;    ///< its own, while it is running
    int32_t resumes = -1;  ///< the snapshot that it begins from, until its first chunk
    int32_t keeps = -1;    ///< the snapshot that is made of it in this pass
    int64_t pause = 0;   ///< tokens after which a snapshot is made; its length: never; not after `cached`: to be found
    int64_t branch = 0;  ///< tokens at its front whose keys were there when it came

    int64_t remaining() const { return static_cast<int64_t>(ids.size()) - cached; }
    /// What the next whole page continues: sequences with one adapter, or one prefix, and one version of the weights
    /// share keys.
    BlockAllocator::PrefixHash before() const { return texts.empty() ? beginning() : texts.back(); }
    BlockAllocator::PrefixHash beginning() const { return policy * most_beginnings + own_beginning(); }
    BlockAllocator::PrefixHash own_beginning() const {  ///< by any weights
        return request.prefix != 0 ? request.prefix : static_cast<BlockAllocator::PrefixHash>(request.adapter + 1);
    }
    static constexpr BlockAllocator::PrefixHash most_beginnings = BlockAllocator::PrefixHash{1} << 32;
};

/// What a pass computes of a sequence: `count` tokens after those cached. It ends within no image, so that a tower
/// runs once for a prompt; it begins within one where a prefix that is shared ends there.
struct ScheduledChunk {
    Sequence* sequence = nullptr;
    int64_t count = 0;
    bool as_decode_rows = false;  ///< PrefillChunk::as_decode_rows
    /// The row of the pass before that chooses its token: only the device knows it yet. -1: the host knows it.
    int64_t from = -1;
    bool sees = false;                 ///< the pass makes its images' keys (Sequence::slot)
    int32_t resumes = -1, keeps = -1;  ///< snapshots (Sequence): copied before the pass, and after it
    bool ahead() const { return from >= 0; }
    bool chooses() const {
        return ahead() || count == sequence->remaining();
    }  ///< its last token's logits give the next
    bool decodes() const { return count == 1 && sequence->cached > 0; }
};

class Scheduler {
  public:
    /// usage Error where the pool has not the pages of one sequence of `context` tokens.
    Scheduler(const SchedulerLimits& limits, int64_t pages, int64_t page_tokens);

    /// The request's number, from 0. usage Error where prompt and answer are longer than limits.context, where an image
    /// has more tokens than a pass takes with all other sequences, and for more images than slots; CheckError for an
    /// empty prompt.
    int64_t add(Request request);
    /// Passes from now on are of this version of the weights: keys of other versions are never read again. CheckError
    /// where the version changes while a sequence is running.
    void use_policy(uint64_t version);
    /// The next pass: parts that decode, others that continue after cached tokens, those that begin. Their pages are
    /// allocated. Empty when no request is left. Call computed() with the parts before you ask for the next pass.
    std::vector<ScheduledChunk> next_pass();
    /// The pass after one that was issued, before its tokens are known. `chosen`: for each row of that pass the
    /// sequence that it chooses a token for, or nullptr. First another token of each that does not end for its length,
    /// in their order, then what next_pass() would take in. Empty where pages are lacking or nothing is left to
    /// compute. What it computes for a sequence that ends meanwhile is discarded: do not pass its part to computed().
    std::vector<ScheduledChunk> schedule_async(std::span<Sequence* const> chosen);
    /// The pass was issued: its tokens' keys are in the cache for every later one.
    void computed(const std::vector<ScheduledChunk>& parts);
    /// The sequence is done: its pages are free. Invalidates it.
    void finish(const Sequence& sequence);
    /// The sequence of this number, running or waiting, is dropped. The running one that was, which is invalid now.
    const Sequence* drop(int64_t number);

    const BlockAllocator& pool() const { return pool_; }
    int64_t running() const { return static_cast<int64_t>(running_.size()); }
    int64_t rows() const { return limits_.rows; }        ///< sequences that run at a time
    int64_t context() const { return limits_.context; }  ///< prompt and answer of one sequence
    /// Tokens of the largest image that goes into a pass, whatever others decode.
    int64_t longest_image() const { return limits_.pass_tokens - limits_.rows + 1; }
    int64_t image_slots() const { return limits_.image_slots; }
    int64_t most_images() const { return limits_.image_slots > 0 ? limits_.image_slots : INT64_MAX; }  ///< of a prompt
    int64_t preemptions() const { return preemptions_; }  ///< sequences whose pages were taken, to be recomputed

  private:
    static constexpr std::size_t looked_at =
        64;  ///< waiting requests that a pass looks at: later ones wait for another
    bool make_room(Sequence& sequence, int64_t tokens);
    void preempt_last();
    void release(Sequence& sequence);
    bool hold_images(Sequence& sequence);
    int64_t next_pause(const Sequence& sequence) const;
    int64_t until_pause(Sequence& sequence, int64_t count);
    bool waits_for_snapshot(const Sequence& sequence) const;
    void finish_parts(std::vector<ScheduledChunk>& parts);
    void add_decoding(std::vector<ScheduledChunk>& parts);
    void add_prompts(std::vector<ScheduledChunk>& parts, int64_t tokens, const ChunkedPrefillPolicy& policy = {});
    void take_in_prompts(std::vector<ScheduledChunk>& parts);
    enum class Admitted : uint8_t { yes, no_room, later };  ///< later: once a running one has a common beginning
    Admitted admit(Sequence& sequence);
    void share_prefix(Sequence& sequence);
    bool is_being_computed(const Sequence& sequence) const;
    std::vector<int32_t> page_contents(const Sequence& sequence, int64_t page) const;
    struct Seen;
    int64_t with_whole_images(const Sequence& sequence, int64_t count, int64_t most, Seen& seen) const;

    SchedulerLimits limits_;
    BlockAllocator pool_;
    ImageSlots slots_;
    StatePlaces states_;
    std::deque<std::unique_ptr<Sequence>> waiting_;
    std::vector<std::unique_ptr<Sequence>> running_;  ///< in the order in which they were admitted
    int64_t added_ = 0, preemptions_ = 0;
    uint64_t policy_ = 0;
};

}  // namespace unsloth::generate
