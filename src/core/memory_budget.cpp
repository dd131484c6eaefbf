#include "unsloth/core/memory_budget.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <limits>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNSLOTH_OWN_NEW 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNSLOTH_OWN_NEW 0
#endif
#endif
#ifndef UNSLOTH_OWN_NEW
#define UNSLOTH_OWN_NEW 1
#endif

namespace {

constexpr int64_t unbounded = std::numeric_limits<int64_t>::max();

struct Account {
    bool open = false;
    int64_t held = 0, limit = 0;
    int64_t bound = unbounded;  ///< that is enforced now
};
// The library that holds this is always loaded at the program's start: no call is needed to find the thread's own.
__attribute__((tls_model("initial-exec"))) constinit thread_local Account account;

#if UNSLOTH_OWN_NEW
void charge(void* memory) {
    const auto bytes = static_cast<int64_t>(::malloc_usable_size(memory));
    if (account.held + bytes > account.bound && std::uncaught_exceptions() == 0) {
        std::free(memory);
        throw unsloth::BudgetSpent();
    }
    account.held += bytes;
}

/// As the standard asks: what set_new_handler() named is called until there is memory.
template <class Take>
void* take(Take memory_or_null) {
    void* memory = nullptr;
    while ((memory = memory_or_null()) == nullptr) {
        const std::new_handler handler = std::get_new_handler();
        if (handler == nullptr) throw std::bad_alloc();
        handler();
    }
    if (account.open) charge(memory);
    return memory;
}

void give_back(void* memory) noexcept {
    if (account.open && memory != nullptr) account.held -= static_cast<int64_t>(::malloc_usable_size(memory));
    std::free(memory);
}
#endif

}  // namespace

#if UNSLOTH_OWN_NEW
// The forms for arrays, for sizes and that do not throw call these.
void* operator new(std::size_t bytes) {
    return take([&] { return std::malloc(std::max<std::size_t>(bytes, 1)); });
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    const auto step = static_cast<std::size_t>(alignment);
    return take([&] { return std::aligned_alloc(step, (std::max<std::size_t>(bytes, 1) + step - 1) / step * step); });
}
void operator delete(void* memory) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    give_back(memory);
}
#endif

namespace unsloth {

MemoryBudget::MemoryBudget(int64_t bytes) : outermost_(!account.open) {
    if (outermost_) account = {true, 0, bytes, unbounded};
}

MemoryBudget::~MemoryBudget() {
    if (outermost_) account.open = false;
}

bool MemoryBudget::counts() {
    return UNSLOTH_OWN_NEW != 0;
}

MemoryBound::MemoryBound(int64_t at_most) : outer_(account.bound) {
    account.bound = std::min({account.bound, at_most, account.open ? account.limit : unbounded});
}

MemoryBound::MemoryBound(None) : outer_(account.bound) {
    account.bound = unbounded;
}

MemoryBound::~MemoryBound() {
    account.bound = outer_;
}

}  // namespace unsloth
