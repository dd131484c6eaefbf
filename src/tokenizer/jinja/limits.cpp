#include "tokenizer/jinja/limits.h"

#include <utility>

#include "tokenizer/jinja/value.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

thread_local int64_t* budget = nullptr;

}  // namespace

Budget::Budget(int64_t& steps) : outer_(std::exchange(budget, &steps)) {}

Budget::~Budget() {
    budget = outer_;
}

void charge(int64_t steps) {
    if (budget == nullptr) return;
    *budget -= steps;
    if (*budget < 0) throw LimitReached("the template takes too long: it loops without end, or over too much");
}

void check_sequence(std::size_t size) {
    if (size > longest_sequence) fail(cat("a sequence of more than ", longest_sequence, " elements"));
}

void check_string(std::size_t size) {
    if (size > longest_string) fail("a string of more than 64 MiB");
}

}  // namespace unsloth::tokenizer::jinja
