#include "unsloth/core/path_advice.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "common/files.h"

namespace unsloth {
namespace {

TEST(PathAdvice, NamesPathsThatDifferByASlip) {
    const test::ScratchFolder folder;
    folder.write("data/train.jsonl", "");
    folder.write("data/eval.jsonl", "");
    const std::filesystem::path data = folder.path() / "data";
    EXPECT_EQ(nearest_path(data / "trian.jsonl"), "Did you mean " + (data / "train.jsonl").string() + "?");
    EXPECT_EQ(nearest_path(folder.path() / "dta" / "train.jsonl"),
              "Did you mean " + (data / "train.jsonl").string() + "?");
    EXPECT_EQ(nearest_path(folder.path() / "dta" / "other.jsonl"), "") << "what is suggested must be there";
    EXPECT_EQ(nearest_path(data / "weights.safetensors"), "");
    EXPECT_EQ(nearest_path(""), "");
    EXPECT_EQ(advice_on_missing(data / "weights.safetensors"), "") << "an absolute path says where it was looked for";
    EXPECT_EQ(advice_on_missing("nothing/of/this"),
              "It was looked for from the current folder, " + std::filesystem::current_path().string() + ".");
}

TEST(PathAdvice, SaysWhereALinkLeads) {
    const test::ScratchFolder folder;
    const std::filesystem::path link = folder.path() / "rows.jsonl";
    std::filesystem::create_symlink("moved/rows.jsonl", link);
    EXPECT_EQ(advice_on_missing(link), "It is a link to moved/rows.jsonl, which is not there.");
}

TEST(PathAdvice, SaysWhatStandsInTheWay) {
    const test::ScratchFolder folder;
    const std::filesystem::path out = folder.path() / "no" / "where" / "run.json";
    EXPECT_EQ(advice_on_creating(out, ENOENT), "There is no folder " + (folder.path() / "no").string() +
                                                   ". Create it (mkdir -p " + out.parent_path().string() +
                                                   "), or choose another.");
    EXPECT_EQ(advice_on_creating(out, EROFS), "Choose a folder that you may write into.");
    EXPECT_EQ(advice_on_creating(out, ENOSPC), "Free some space, or choose another folder.");
    EXPECT_EQ(advice_on_creating(out, EIO), "");
    EXPECT_EQ(advice_on_creating("/proc/run", ENOENT), "Choose a folder that you may write into.") << "/proc is there";
}

}  // namespace
}  // namespace unsloth
