// What `explain` says of error ids.
#include "app/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "common/errors.h"

namespace unsloth::app {
namespace {

/// What is wrong with the name of an id.
std::string refusal(const std::string& name) {
    try {
        return "accepted: " + explanation(name);
    } catch (const Error& error) {
        test::Expected("option.invalid-value").check(error);
        return error.what();
    }
}

TEST(Explain, SaysWhatAnIdMeansAndWhatToDo) {
    const std::string text = explanation("data.all-masked");
    EXPECT_TRUE(text.starts_with("data.all-masked (exit code 3)\n\nA row has no label")) << text;
    EXPECT_NE(text.find("\n\nWhat to do: Show it with `unsloth-train data`"), std::string::npos) << text;
    for (const char* as_printed : {"error[data.all-masked]", "unsloth-train: error[data.all-masked]: rows.jsonl:3"})
        EXPECT_EQ(explanation(as_printed), text);
}

TEST(Explain, OffersTheNearestIds) {
    EXPECT_NE(refusal("data.all-maskd").find("Did you mean data.all-masked?"), std::string::npos);
    EXPECT_NE(refusal("git-lfs").find("Did you mean disk.git-lfs-pointer?"), std::string::npos);
    EXPECT_NE(refusal("kernel.nothing").find("Did you mean kernel.wrong-table?"), std::string::npos);
    EXPECT_NE(refusal("zebra").find("unsloth-train explain lists all ids."), std::string::npos);
    EXPECT_NE(refusal("").find("lists all ids"), std::string::npos);
}

TEST(Explain, ListsAllIds) {
    const std::string list = error_ids_list();
    for (const KnownErrorId& known : known_error_ids)
        EXPECT_NE(("\n" + list).find(cat("\n", known.name, " ")), std::string::npos) << known.name;
    EXPECT_EQ(static_cast<std::size_t>(std::count(list.begin(), list.end(), '\n')), std::size(known_error_ids));
}

}  // namespace
}  // namespace unsloth::app
