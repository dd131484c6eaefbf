#include "unsloth/core/staged_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

class Staged : public testing::Test {
  protected:
    Staged() : root_(fs::temp_directory_path() / cat("unsloth-staged-", ::getpid())) {
        fs::remove_all(root_);
        fs::create_directories(root_);
    }
    ~Staged() override { fs::remove_all(root_); }
    static void write(const fs::path& path) { std::ofstream(path) << "content"; }
    std::size_t entries() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_), fs::directory_iterator())); }

    fs::path root_;
};

TEST_F(Staged, AppearsWithCommitAlone) {
    StagedFolder staged(root_ / "deep" / "out");
    fs::create_directory(staged.path() / "inner");
    write(staged.path() / "inner" / "file");
    EXPECT_FALSE(fs::exists(root_ / "deep" / "out"));
    EXPECT_EQ(staged.path().parent_path(), staged.target().parent_path()) << "a rename across file systems would fail";
    staged.commit();
    EXPECT_EQ(read_file(root_ / "deep" / "out" / "inner" / "file"), "content");
    EXPECT_FALSE(fs::exists(staged.path()));
}

TEST_F(Staged, TakesARelativePath) {
    const fs::path before = fs::current_path();
    fs::current_path(root_);
    {
        StagedFolder staged("out");
        write(staged.path() / "file");
        staged.commit();
    }
    fs::current_path(before);
    EXPECT_EQ(read_file(root_ / "out" / "file"), "content");
}

TEST_F(Staged, LeavesNothingWithoutCommit) {
    {
        StagedFolder staged(root_ / "out");
        write(staged.path() / "file");
    }
    EXPECT_EQ(entries(), 0U);
}

TEST_F(Staged, IsKeptWhenAskedTo) {
    fs::path place;
    {
        StagedFolder staged(root_ / "out");
        write(staged.path() / "file");
        staged.keep();
        place = staged.path();
    }
    EXPECT_TRUE(fs::exists(place / "file"));
    EXPECT_FALSE(fs::exists(root_ / "out"));
}

TEST_F(Staged, TakesTheNameOfAnEmptyFolder) {
    fs::create_directory(root_ / "out");
    StagedFolder staged(root_.string() + "/out/");
    write(staged.path() / "file");
    staged.commit();
    EXPECT_TRUE(fs::exists(root_ / "out" / "file"));
    EXPECT_EQ(entries(), 1U);
}

TEST_F(Staged, RefusesWhatIsThere) {
    const auto refused = [&](const fs::path& target, const char* word) {
        try {
            const StagedFolder staged(target);
            ADD_FAILURE() << target;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    };
    fs::create_directory(root_ / "full");
    write(root_ / "full" / "file");
    write(root_ / "plain");
    refused(root_ / "full", "not empty");
    refused(root_ / "plain", "not a folder");
    EXPECT_EQ(entries(), 2U) << "nothing was begun";
    StagedFolder late(root_ / "late");
    fs::create_directory(root_ / "late");
    write(root_ / "late" / "file");
    EXPECT_THROW(late.commit(), Error) << "it came while the folder was filled";
    EXPECT_EQ(read_file(root_ / "late" / "file"), "content");
}

TEST_F(Staged, SaysWhyAFolderCannotBeMade) {
    write(root_ / "plain");
    try {
        const StagedFolder staged(root_ / "plain" / "out");
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        EXPECT_NE(std::string(error.what()).find("plain"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace unsloth
