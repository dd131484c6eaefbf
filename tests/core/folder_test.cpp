#include "unsloth/core/folder.h"
#include "common/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

constexpr uid_t stranger = 12345;

/// A folder in which others may write but not take anything away, as /tmp is, and one elsewhere that is precious.
class FolderTest : public testing::Test {
  protected:
    FolderTest() {
        fs::create_directories(root_ / "shared");
        fs::permissions(root_ / "shared", fs::perms::all | fs::perms::sticky_bit);
        scratch_.write("precious/file", "content");
    }
    ~FolderTest() override { EXPECT_EQ(read_file(root_ / "precious" / "file"), "content"); }
    void give_away(const fs::path& name) const { ASSERT_EQ(::lchown((root_ / name).c_str(), stranger, stranger), 0); }
    template <class Use>
    static void expect_refused(const char* word, Use use) {
        try {
            use();
            ADD_FAILURE() << word;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::runtime);
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    }

    test::ScratchFolder scratch_;
    const fs::path& root_ = scratch_.path();
};

TEST_F(FolderTest, IsNamedThroughLinks) {
    fs::create_directory(root_ / "shared" / "real");
    fs::create_symlink("real", root_ / "shared" / "link");
    fs::create_symlink(root_ / "shared" / "link", root_ / "absolute");
    fs::create_symlink("loop", root_ / "loop");
    for (const char* name : {"shared/real", "shared/link", "absolute", "shared/link/../real/", "./absolute/."}) {
        const Folder folder = Folder::named(root_ / name).require();
        write_file_atomically(folder, "file", name);
        EXPECT_EQ(read_file(root_ / "shared/real/file"), name);
    }
    EXPECT_EQ(Folder::named(root_ / "absent").failure(), ENOENT);
    EXPECT_EQ(Folder::named(root_ / "precious/file").failure(), ENOTDIR);
    EXPECT_EQ(Folder::named(root_ / "precious/file/below").failure(), ENOTDIR);
    EXPECT_EQ(Folder::named(root_ / "loop").failure(), ELOOP);
    expect_refused("cannot open the folder", [&] { Folder::named(root_ / "absent").require(); });
    EXPECT_TRUE(Folder::made(root_ / "a/b/c").open());
    EXPECT_TRUE(fs::is_directory(root_ / "a/b/c"));
}

TEST_F(FolderTest, FollowsNoStrangersLinkInASharedFolder) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a link away";
    fs::create_symlink(root_ / "precious", root_ / "shared" / "link");
    give_away("shared/link");
    for (const char* name : {"shared/link", "shared/link/below", "shared/../shared/link"}) {
        expect_refused("is a symbolic link of another user (number 12345)", [&] { Folder::named(root_ / name); });
        expect_refused("is a symbolic link of another user", [&] { Folder::made(root_ / name); });
        expect_refused("is a symbolic link of another user",
                       [&] { write_file_atomically(root_ / name / "file", "new"); });
    }
    give_away("shared");
    EXPECT_TRUE(Folder::named(root_ / "shared/link").open()) << "the folder's owner";
    ASSERT_EQ(::chown((root_ / "shared").c_str(), 0, 0), 0);
    fs::permissions(root_ / "shared", fs::perms::all);
    EXPECT_TRUE(Folder::named(root_ / "shared/link").open()) << "who may take away what is there needs no link";
}

TEST_F(FolderTest, KeepsFoldersOfItsOwnWithoutLinks) {
    const Folder folder = Folder::named(root_ / "shared").require();
    EXPECT_EQ(folder.below("own").failure(), ENOENT);
    EXPECT_TRUE(folder.made_below("own/deep").open());
    EXPECT_TRUE(folder.below("own/deep").open());
    EXPECT_TRUE(folder.below("").open());
    fs::create_symlink(root_ / "precious", root_ / "shared" / "link");
    fs::create_symlink(root_ / "precious", root_ / "shared/own/link");
    for (const char* name : {"link", "link/below", "own/link"}) {
        expect_refused("is a symbolic link, where this program keeps a folder", [&] { folder.made_below(name); });
        expect_refused("is a symbolic link", [&] { folder.below(name, Owner::anyone); });
    }
    EXPECT_TRUE(folder.below(root_ / "shared/link").open()) << "a path that leads out is the user's own";
    EXPECT_TRUE(folder.below("../shared").open());
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    give_away("shared/own");
    expect_refused("own belongs to another user (number 12345)", [&] { folder.made_below("own"); });
    EXPECT_TRUE(folder.made_below("own", Owner::anyone).open());
    EXPECT_FALSE(folder.owns(folder.look("own").value()));
    EXPECT_TRUE(folder.owns(folder.look("link").value()));
}

TEST_F(FolderTest, StaysWhereItWasOpened) {
    fs::create_directory(root_ / "out");
    const Folder folder = Folder::named(root_ / "out").require();
    AtomicFile half(Place{folder, "half"}, 0);
    fs::rename(root_ / "out", root_ / "moved");
    fs::create_symlink(root_ / "precious", root_ / "out");
    write_file_atomically(folder, "file", "new");
    half.finish();
    EXPECT_EQ(read_file(root_ / "moved/file"), "new");
    EXPECT_TRUE(fs::exists(root_ / "moved/half"));
    EXPECT_TRUE(folder.remove("file"));
    EXPECT_FALSE(fs::exists(root_ / "moved/file"));
}

TEST_F(FolderTest, RemovesLinksAndNotWhereTheyLead) {
    const Folder folder = Folder::named(root_ / "shared").require();
    fs::create_directories(root_ / "shared/own/deep");
    fs::create_directory_symlink(root_ / "precious", root_ / "shared/own/deep/link");
    fs::create_directory_symlink(root_ / "precious", root_ / "shared/link");
    std::vector<std::string> names = folder.names();
    std::ranges::sort(names);
    EXPECT_EQ(names, (std::vector<std::string>{"link", "own"}));
    for (const char* name : {"own", "link", "absent"}) EXPECT_TRUE(folder.remove(name)) << name;
    EXPECT_EQ(folder.names().size(), 0U);
}

}  // namespace
}  // namespace unsloth
