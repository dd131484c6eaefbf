// A bound on what one thread's work may take of the memory, counted where memory is taken: operator new.
#pragma once

#include <cstdint>
#include <limits>
#include <new>

namespace unsloth {

/// What operator new throws when a budget is spent.
class BudgetSpent : public std::bad_alloc {
  public:
    const char* what() const noexcept override { return "the memory that this work may take is spent"; }
};

/// While it lives, what the calling thread takes with operator new and has not given back is counted; within another
/// budget it changes nothing. What is taken in other ways (malloc, mmap) does not count. Under AddressSanitizer and
/// ThreadSanitizer, which bring an operator new of their own, nothing does.
///
/// Nothing is thrown but where a MemoryBound says so: destructors may take memory too (nlohmann's JSON and Jinja's
/// values do, to be destroyed without recursion), and from them nothing may be thrown.
class MemoryBudget {
  public:
    explicit MemoryBudget(int64_t bytes);
    ~MemoryBudget();
    MemoryBudget(const MemoryBudget&) = delete;
    MemoryBudget& operator=(const MemoryBudget&) = delete;

    static bool counts();  ///< whether anything is counted in this build

  private:
    bool outermost_;
};

/// While it lives, an allocation that would pass `at_most` bytes or the thread's budget throws BudgetSpent, except
/// while an exception is on its way. Without a budget it changes nothing. Where it lives, no destructor may take memory
/// but under MemoryBound::none().
class MemoryBound {
  public:
    explicit MemoryBound(int64_t at_most = std::numeric_limits<int64_t>::max());
    static MemoryBound none() { return MemoryBound(None()); }
    ~MemoryBound();
    MemoryBound(const MemoryBound&) = delete;
    MemoryBound& operator=(const MemoryBound&) = delete;

  private:
    struct None {};
    explicit MemoryBound(None);

    int64_t outer_;
};

}  // namespace unsloth
