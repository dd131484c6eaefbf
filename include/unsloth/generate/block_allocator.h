// The pages of a cache of keys and values: who holds which, and which hold a text that another sequence begins with.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace unsloth::generate {

class BlockAllocator {
  public:
    /// Names what a page holds together with all before it. Those below `beginnings` are for what sequences begin with:
    /// two that begin with different ones share no page.
    using PrefixHash = uint64_t;
    static constexpr PrefixHash beginnings = PrefixHash{1} << 63;

    BlockAllocator(int64_t pages, int64_t page_tokens);

    int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
    int64_t page_tokens() const { return page_tokens_; }
    int64_t free() const { return static_cast<int64_t>(free_.size()); }  ///< that have no holder

    /// A page with one holder, whose text is forgotten: the one that has been free for longest. Nothing when all are
    /// held.
    std::optional<int32_t> allocate();
    /// One holder more, of a page that find() named.
    void ref(int32_t page);
    /// One holder less. Without holders a page is free, and found by its text until it is taken. CheckError where
    /// it has no holder.
    void unref(int32_t page);

    struct Found {
        int32_t page;
        PrefixHash text;
    };
    /// The page that holds these ids after `before`, held or free. There are page_tokens() ids; more may follow them
    /// that tells contents apart.
    std::optional<Found> find(PrefixHash before, std::span<const int32_t> ids) const;
    /// A held page's keys are complete: it holds these ids after `before`. The name of that text, also where another
    /// page has it already.
    PrefixHash commit(int32_t page, PrefixHash before, std::span<const int32_t> ids);

  private:
    struct Page {
        int64_t holders = 0;
        PrefixHash text = 0, before = 0;  ///< 0: not to be found
        std::vector<int32_t> ids;
        std::list<int32_t>::iterator place;  ///< in free_, without holders
    };
    Page& at(int32_t page) { return pages_.at(static_cast<std::size_t>(page)); }
    const Page& at(int32_t page) const { return pages_.at(static_cast<std::size_t>(page)); }
    static uint64_t key(PrefixHash before, std::span<const int32_t> ids);

    int64_t page_tokens_;
    std::vector<Page> pages_;
    std::list<int32_t> free_;                          ///< those without a text first, then the longest free
    std::unordered_map<uint64_t, int32_t> published_;  ///< by key(); a page keeps its contents to be compared
    PrefixHash last_text_ = beginnings;
};

}  // namespace unsloth::generate
