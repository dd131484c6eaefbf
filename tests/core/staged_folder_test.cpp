#include "unsloth/core/staged_folder.h"
#include "common/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/temporary.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

class Staged : public testing::Test {
  protected:
    static void write(const fs::path& path) { std::ofstream(path) << "content"; }
    std::size_t entries() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_), fs::directory_iterator()));
    }

    test::ScratchFolder scratch_;
    const fs::path& root_ = scratch_.path();
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

TEST_F(Staged, IsKeptUnderAnotherNameWhenAskedTo) {
    fs::path place;
    {
        StagedFolder staged(root_ / "out");
        write(staged.path() / "file");
        place = staged.keep_as("unverified");
    }
    {
        const StagedFolder another(root_ / "out");
    }
    EXPECT_EQ(place, root_ / cat("out.unverified-", ::getpid()));
    EXPECT_TRUE(fs::exists(place / "file"));
    EXPECT_EQ(entries(), 1U);
}

TEST_F(Staged, RemovesWhatAKilledProcessLeft) {
    fs::create_directories(root_ / "out.tmp-1" / "inner");
    write(root_ / "out.tmp-1" / "inner" / "file");
    write(root_ / "out.tmp-0123456789abcdef");
    fs::create_directories(root_ / "out.tmp-77x");
    fs::create_directories(root_ / "other.tmp-1");
    {
        const StagedFolder staged(root_ / "out");
    }
    EXPECT_FALSE(fs::exists(root_ / "out.tmp-1"));
    EXPECT_FALSE(fs::exists(root_ / "out.tmp-0123456789abcdef"));
    EXPECT_EQ(entries(), 2U) << "names of others";
    write(root_ / "one.tmp-5");
    write_file_atomically(root_ / "one", "content");
    EXPECT_EQ(entries(), 3U) << "of files too";
}

TEST_F(Staged, NamesCannotBePredicted) {
    const AtomicFile file(root_ / "a", 0), again(root_ / "a", 0);
    const StagedFolder folder(root_ / "a");
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) {
        const std::string name = entry.path().filename().string();
        EXPECT_EQ(name.size(), std::string("a.tmp-").size() + 16) << name;
        names.insert(name);
    }
    EXPECT_EQ(names.size(), 3U);
}

// Under the names that were used before: whoever knew the process could have the file of his choice emptied.
TEST_F(Staged, FollowsNoPlantedLink) {
    write(root_ / "precious");
    for (const char* name : {"out", "one"}) {
        fs::create_symlink(root_ / "precious", root_ / cat(name, ".tmp-", ::getpid()));
        fs::create_symlink(root_ / "precious", root_ / cat(name, ".tmp-x"));
    }
    write_file_atomically(root_ / "one", "new");
    StagedFolder staged(root_ / "out");
    staged.commit();
    EXPECT_EQ(read_file(root_ / "precious"), "content");
    EXPECT_EQ(read_file(root_ / "one"), "new");
}

TEST_F(Staged, TakesTheNameOfALinkAndOfNoDevice) {
    write(root_ / "precious");
    fs::create_symlink(root_ / "precious", root_ / "link");
    write_file_atomically(root_ / "link", "new");
    EXPECT_EQ(read_file(root_ / "precious"), "content");
    EXPECT_FALSE(fs::is_symlink(root_ / "link"));
    ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
    fs::create_symlink("/dev/null", root_ / "device");
    for (const char* name : {"fifo", "device"}) {
        EXPECT_THROW(write_file_atomically(root_ / name, "new"), Error);
        EXPECT_FALSE(fs::is_regular_file(root_ / name));
    }
    EXPECT_EQ(entries(), 4U);
}

TEST_F(Staged, LeavesWhatAnotherProcessFills) {
    const StagedFolder staged(root_ / "out");
    write(staged.path() / "file");
    const AtomicFile file(root_ / "one", 0);
    EXPECT_EQ(entries(), 2U);
    // flock tells open files apart, so that the same process does here for another one.
    remove_abandoned(place_of(root_ / "out"));
    remove_abandoned(place_of(root_ / "one"));
    EXPECT_TRUE(fs::exists(staged.path() / "file"));
    EXPECT_EQ(entries(), 2U);
}

TEST_F(Staged, TakesTheNameOfAnEmptyFolder) {
    fs::create_directory(root_ / "out");
    StagedFolder staged(root_.string() + "/out/");
    write(staged.path() / "file");
    staged.commit();
    EXPECT_TRUE(fs::exists(root_ / "out" / "file"));
    EXPECT_EQ(entries(), 1U);
}

TEST_F(Staged, ReplacesWhatIsThereWhenAskedTo) {
    fs::create_directory(root_ / "out");
    write(root_ / "out" / "old");
    {
        const StagedFolder staged(Folder::named(root_), "out");
        write(staged.path() / "new");
    }
    EXPECT_TRUE(fs::exists(root_ / "out" / "old")) << "without commit";
    {
        StagedFolder staged(Folder::named(root_), "out");
        write(staged.path() / "new");
        staged.commit();
    }
    EXPECT_TRUE(fs::exists(root_ / "out" / "new"));
    EXPECT_FALSE(fs::exists(root_ / "out" / "old"));
    EXPECT_EQ(entries(), 1U);
}

TEST_F(Staged, ReplacesALinkAndNotWhereItLeads) {
    fs::create_directory(root_ / "precious");
    write(root_ / "precious" / "file");
    fs::create_directory_symlink(root_ / "precious", root_ / "out");
    StagedFolder staged(Folder::named(root_), "out");
    write(staged.path() / "new");
    staged.commit();
    EXPECT_TRUE(fs::exists(root_ / "precious" / "file"));
    EXPECT_FALSE(fs::exists(root_ / "precious" / "new"));
    EXPECT_FALSE(fs::is_symlink(root_ / "out"));
    EXPECT_EQ(entries(), 2U);
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    ASSERT_EQ(::chown((root_ / "out").c_str(), 12345, 12345), 0);
    StagedFolder again(Folder::named(root_), "out");
    EXPECT_THROW(again.commit(), Error) << "another user's";
    EXPECT_TRUE(fs::exists(root_ / "out" / "new"));
}

TEST_F(Staged, IsWhereALinkOfTheUsersLeads) {
    fs::create_directory_symlink("elsewhere/out", root_ / "link");
    StagedFolder staged(root_ / "link");
    write(staged.path() / "file");
    staged.commit();
    EXPECT_TRUE(fs::exists(root_ / "elsewhere" / "out" / "file"));
    EXPECT_TRUE(fs::is_symlink(root_ / "link"));
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
