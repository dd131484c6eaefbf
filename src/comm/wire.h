// What goes over a connection between a rank and the ranks' store. First both prove that they know the run's secret
// (without one: that they are ranks of the same run), then come requests and replies as frames. Between machines every
// frame carries MACs over its number, its head and its content, under keys of this connection and direction; within one
// machine only root can reach into a connection, and the proofs suffice. Numbers are little-endian.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/hmac.h"

namespace unsloth::comm {

using Value = std::shared_ptr<const std::vector<uint8_t>>;

/// What came is no message of this protocol, or of somebody who does not know the secret.
struct Garbled : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// --- the handshake -------------------------------------------------------------------------------------------------

struct Hello {
    std::array<char, 8> magic;
    uint32_t rank, size;
    uint32_t run;  ///< count of restarts: a rank of an earlier start must not come in
    Digest nonce;
};
struct Welcome {
    std::array<char, 8> magic;
    uint32_t seals;  ///< 1: frames carry MACs
    Digest nonce, proof;
};
static_assert(sizeof(Hello) == 52 && sizeof(Welcome) == 76, "they go over the wire as they are in memory");

inline constexpr std::array<char, 8> wire_magic{'u', 'n', 's', 'l', 'o', 't', 'h', '1'};

/// The proof, or key, called `purpose` of this handshake; the welcome's own proof does not count.
Digest derive(const std::string& secret, const char* purpose, const Hello& hello, const Welcome& welcome);

// --- frames --------------------------------------------------------------------------------------------------------

enum class Op : uint8_t {
    set,     ///< key, value: nothing
    get,     ///< key: the value as soon as it is there, `absent` after wait_ms without it
    add,     ///< key, int64: the sum, int64
    remove,  ///< key: nothing
    signs,   ///< this rank's heartbeat: those of all ranks, each after its uint32 size
    done,    ///< a reply
    absent,  ///< a reply
};

struct Head {
    Op op;
    uint8_t spare = 0;
    uint16_t key_size = 0;
    uint32_t wait_ms = 0;
    uint64_t size = 0;
};
static_assert(sizeof(Head) == 16);

inline constexpr std::size_t longest_key = 256, longest_sign = 2048;
inline constexpr uint64_t largest_value = uint64_t{1} << 36;
inline constexpr std::size_t piece_bytes = 1 << 20;  ///< at most so much is moved, and hashed, at a time

/// The MACs of one direction.
class Seal {
  public:
    Seal() = default;  ///< none
    explicit Seal(const Digest& key) : key_(key) {}
    bool on() const { return key_.has_value(); }
    Digest of_head(const Head& head) const { return begin('h', head).finish(); }
    Hmac of_content(const Head& head) const { return begin('c', head); }
    void next() { ++number_; }

  private:
    Hmac begin(char what, const Head& head) const;
    std::optional<Digest> key_;
    uint64_t number_ = 0;
};

/// Takes a frame in, in whatever pieces it comes.
class FrameReader {
  public:
    FrameReader(const Seal& seal, bool takes_requests) : seal_(seal), takes_requests_(takes_requests) {}

    /// Where the next bytes belong; never empty.
    std::span<uint8_t> room();
    /// `count` bytes came; true: the frame is whole. Garbled when it is none. Memory grows with what came.
    bool filled(std::size_t count);
    bool whole() const { return stage_ == Stage::whole; }
    const Head& head() const { return head_; }
    const std::string& key() const { return key_; }
    std::vector<uint8_t>& body() { return body_; }
    /// For the next frame.
    void reset();

  private:
    enum class Stage { front, key, body, mac, whole };
    std::size_t size_of(Stage stage) const;
    void take_front();

    Seal seal_;
    bool takes_requests_;
    Stage stage_ = Stage::front;
    std::size_t got_ = 0;  ///< of the stage
    std::array<uint8_t, sizeof(Head) + sizeof(Digest)> front_{};
    Digest mac_{};
    Head head_{};
    std::string key_;
    std::vector<uint8_t> body_;
    std::optional<Hmac> content_;
};

/// Gives a frame out piece by piece.
class FrameWriter {
  public:
    FrameWriter(Seal& seal, Head head, const std::string& key, Bytes body);
    FrameWriter(Seal& seal, Head head, Value body);  ///< keeps it
    FrameWriter(const FrameWriter&) = delete;
    FrameWriter& operator=(const FrameWriter&) = delete;

    /// What is to be sent next; empty: nothing more.
    Bytes next();
    void sent(std::size_t count);

  private:
    void start(Seal& seal, Head head, const std::string& key);

    Value kept_;
    std::vector<uint8_t> front_;
    Bytes body_, now_;
    std::optional<Hmac> content_;
    Digest mac_{};
    std::size_t given_ = 0;  ///< of the body
    bool ends_ = false;
};

}  // namespace unsloth::comm
