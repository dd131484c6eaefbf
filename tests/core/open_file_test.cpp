#include "unsloth/core/open_file.h"
#include "common/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/folder_lock.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

class OpenFileTest : public testing::Test {
  protected:
    OpenFileTest() { std::ofstream(root_ / "precious") << "content"; }
    ~OpenFileTest() override { EXPECT_EQ(read_file(root_ / "precious"), "content"); }
    void make_socket(const fs::path& path) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.string().copy(address.sun_path, sizeof address.sun_path - 1);
        socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM, 0));
        ASSERT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    }
    template <class Use>
    void expect_refused(ErrorKind kind, const fs::path& path, const char* word, Use use) {
        try {
            use();
            ADD_FAILURE() << path;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), kind);
            EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    }

    test::ScratchFolder scratch_;
    const fs::path& root_ = scratch_.path();
    Descriptor socket_;
};

TEST_F(OpenFileTest, WaitsForNothingThatIsRead) {
    ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
    make_socket(root_ / "socket");
    fs::create_symlink(root_ / "fifo", root_ / "link");
    fs::create_symlink("/dev/zero", root_ / "zero");
    ::alarm(20);  // who waits is ended
    for (const auto& [name, word] : {std::pair{"fifo", "a FIFO"},
                                     {"socket", "a socket"},
                                     {"link", "a FIFO"},
                                     {"zero", "a device"},
                                     {".", "a folder"},
                                     {"absent", "No such file"}})
        expect_refused(ErrorKind::input, root_ / name, word, [&] { read_file(root_ / name); });
    ::alarm(0);
    fs::create_symlink(root_ / "precious", root_ / "good");
    EXPECT_EQ(read_file(root_ / "good"), "content") << "as in the Hugging Face cache";
}

TEST_F(OpenFileTest, RefusesWhatWasPlanted) {
    fs::create_symlink(root_ / "precious", root_ / "link");
    fs::create_symlink(root_ / "nowhere", root_ / "dangling");
    fs::create_hard_link(root_ / "precious", root_ / "hard");
    ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
    fs::create_directory(root_ / "folder");
    make_socket(root_ / "socket");
    ::alarm(20);
    for (const auto& [name, word] : {std::pair{"link", "is a symbolic link"},
                                     {"dangling", "is a symbolic link"},
                                     {"hard", "hard link"},
                                     {"fifo", "is a FIFO"},
                                     {"folder", "is a folder"},
                                     {"socket", "is a socket"}}) {
        expect_refused(ErrorKind::runtime, root_ / name, word, [&] { open_own_file(root_ / name, O_RDWR | O_CREAT); });
        fs::create_directory(root_ / "run");
        fs::rename(root_ / name, root_ / "run" / "run.lock");
        expect_refused(ErrorKind::runtime, root_ / "run" / "run.lock", word, [&] { FolderLock lock(root_ / "run"); });
        fs::remove_all(root_ / "run");
    }
    ::alarm(0);
    EXPECT_FALSE(fs::exists(root_ / "nowhere"));
}

TEST_F(OpenFileTest, KnowsWhoseAFileIs) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    constexpr uid_t other = 12345, another = 12346;
    std::ofstream(root_ / "file") << "x";
    ASSERT_EQ(::chown((root_ / "file").c_str(), other, other), 0);
    expect_refused(ErrorKind::runtime, root_ / "file", "belongs to another user (number 12345)",
                   [&] { open_own_file(root_ / "file", O_RDWR); });
    EXPECT_TRUE(open_own_file(root_ / "file", O_RDWR, Owner::anyone).open()) << "in a cache that users share";
    ASSERT_EQ(::chown(root_.c_str(), other, other), 0);
    EXPECT_TRUE(open_own_file(root_ / "file", O_RDWR).open()) << "the folder's owner";
    ASSERT_EQ(::chown(root_.c_str(), another, another), 0);
    EXPECT_THROW(open_own_file(root_ / "file", O_RDWR), Error);
}

TEST_F(OpenFileTest, MakesAndTellsWhatTheSystemSays) {
    EXPECT_FALSE(open_own_file(root_ / "new", O_RDONLY).open());
    EXPECT_EQ(errno, ENOENT);
    EXPECT_TRUE(open_own_file(root_ / "new", O_RDWR | O_CREAT).open());
    EXPECT_TRUE(open_own_file(root_ / "new", O_RDWR | O_CREAT).open());
    EXPECT_FALSE(open_own_file(root_ / "precious" / "below", O_RDWR | O_CREAT).open());
    EXPECT_EQ(errno, ENOTDIR);
}

}  // namespace
}  // namespace unsloth
