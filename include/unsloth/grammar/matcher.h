// The state of a text in a grammar, and which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/grammar/grammar.h"

namespace unsloth::grammar {

/// The bytes of a vocabulary's tokens, in an order in which common beginnings are visited once. Immutable.
class Vocabulary {
  public:
    /// By id; an empty text is a token that no grammar allows (special ones).
    explicit Vocabulary(std::vector<std::string> bytes);
    int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
    std::size_t words() const { return (bytes_.size() + 31) / 32; }
    const std::string& bytes(int32_t id) const { return bytes_[static_cast<std::size_t>(id)]; }
    struct Entry {
        int32_t id = 0;
        uint32_t common = 0;  ///< bytes that it begins with as the entry before does
        uint32_t size = 0;
        std::size_t begin = 0;  ///< of its bytes in text()
    };
    const std::vector<Entry>& sorted() const { return sorted_; }
    const std::string& text() const { return text_; }  ///< the tokens' bytes in this order: a walk reads them in a row
    const std::vector<int32_t>& single_bytes() const { return single_bytes_; }  ///< the tokens of one byte

  private:
    std::vector<std::string> bytes_;
    std::vector<Entry> sorted_;
    std::string text_;
    std::vector<int32_t> single_bytes_;
};

class States;

/// What was computed of a grammar over a vocabulary: shared by all texts. Safe from any thread.
class MaskCache {
  public:
    MaskCache(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary);
    ~MaskCache();

  private:
    friend class Matcher;
    std::shared_ptr<States> states();
    struct Inner;
    std::unique_ptr<Inner> inner_;
};

/// One text. Of one thread at a time.
class Matcher {
  public:
    explicit Matcher(std::shared_ptr<MaskCache> cache);
    ~Matcher();

    /// Bit id % 32 of word id / 32: whether the token may come next. Valid until the next call.
    std::span<const uint32_t> allowed();
    /// False: the text cannot continue with it, and nothing changed.
    bool advance(int32_t id);
    bool advance(std::string_view bytes);
    /// Whether the text may end here.
    bool may_end() const;

  private:
    void make_room();
    std::shared_ptr<MaskCache> cache_;
    std::shared_ptr<States> states_;
    int32_t state_ = 0;
    std::vector<uint32_t> mask_;
};

}  // namespace unsloth::grammar
