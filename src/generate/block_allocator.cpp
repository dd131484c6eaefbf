#include "unsloth/generate/block_allocator.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"

namespace unsloth::generate {

BlockAllocator::BlockAllocator(int64_t pages, int64_t page_tokens)
    : page_tokens_(page_tokens), pages_(static_cast<std::size_t>(pages)) {
    for (int32_t page = 0; page < pages; ++page) at(page).place = free_.insert(free_.end(), page);
}

uint64_t BlockAllocator::key(PrefixHash before, std::span<const int32_t> ids) {
    ContentHash hash;
    hash.add({reinterpret_cast<const char*>(&before), sizeof before});
    hash.add({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
    return hash.word();
}

std::optional<int32_t> BlockAllocator::allocate() {
    if (free_.empty()) return std::nullopt;
    const int32_t number = free_.front();
    free_.pop_front();
    Page& page = at(number);
    if (page.text != 0) {
        published_.erase(key(page.before, page.ids));
        page.text = 0;
    }
    page.holders = 1;
    return number;
}

void BlockAllocator::ref(int32_t number) {
    Page& page = at(number);
    if (page.holders == 0) free_.erase(page.place);
    ++page.holders;
}

void BlockAllocator::unref(int32_t number) {
    Page& page = at(number);
    UNSLOTH_CHECK(page.holders > 0, "page ", number, " is released, and no one holds it");
    if (--page.holders > 0) return;
    page.place = free_.insert(page.text == 0 ? free_.begin() : free_.end(), number);
}

std::optional<BlockAllocator::Found> BlockAllocator::find(PrefixHash before, std::span<const int32_t> ids) const {
    const auto entry = published_.find(key(before, ids));
    if (entry == published_.end()) return std::nullopt;
    const Page& page = at(entry->second);
    if (page.before != before || !std::equal(ids.begin(), ids.end(), page.ids.begin(), page.ids.end()))
        return std::nullopt;
    return Found{entry->second, page.text};
}

BlockAllocator::PrefixHash BlockAllocator::commit(int32_t number, PrefixHash before, std::span<const int32_t> ids) {
    UNSLOTH_CHECK(static_cast<int64_t>(ids.size()) >= page_tokens_, ids.size(), " ids for a page of ", page_tokens_);
    Page& page = at(number);
    UNSLOTH_CHECK(page.holders > 0 && page.text == 0, "page ", number, " is not being written");
    if (const auto found = find(before, ids)) return found->text;
    const PrefixHash text = ++last_text_;
    if (!published_.emplace(key(before, ids), number).second) return text;  // another text of the same key is kept
    page.text = text;
    page.before = before;
    page.ids.assign(ids.begin(), ids.end());
    return text;
}

}  // namespace unsloth::generate
