// What tests expect of an Error.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <source_location>

#include "unsloth/core/error.h"

namespace unsloth::test {

/// An error id, "data.empty", which says more; or any id of a kind. A failure names the line that expected it.
class Expected {
  public:
    consteval Expected(const char* id, std::source_location where = std::source_location::current())
        : kind_(ErrorId(id).kind()), id_(ErrorId(id)), where_(where) {}
    constexpr Expected(ErrorKind kind, std::source_location where = std::source_location::current())
        : kind_(kind), where_(where) {}

    /// Fails the test unless `error` is as expected.
    void check(const Error& error) const {
        EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind_)) << from() << error.what();
        if (id_) {
            EXPECT_EQ(error.id().name(), id_->name()) << from() << error.what();
        }
    }

  private:
    std::string from() const { return cat(where_.file_name(), ":", where_.line(), ": "); }

    ErrorKind kind_;
    std::optional<ErrorId> id_;
    std::source_location where_;
};

}  // namespace unsloth::test
