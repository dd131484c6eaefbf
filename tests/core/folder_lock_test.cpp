#include "unsloth/core/folder_lock.h"
#include "common/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(FolderLock, OneHolderAndNothingLeft) {
    const test::ScratchFolder scratch;
    const std::filesystem::path& folder = scratch.path();
    {
        const FolderLock lock(folder);
        // Another process: locks of one process's own descriptors exclude each other too, but that is not what is
        // promised.
        const pid_t child = ::fork();
        if (child == 0) {
            try {
                const FolderLock second(folder);
            } catch (const Error& error) {
                ::_exit(std::string(error.what()).find(cat("process ", ::getppid(), " on ")) != std::string::npos ? 7
                                                                                                                  : 8);
            }
            ::_exit(0);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(WEXITSTATUS(status), 7);
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "run.lock"));
    std::ofstream(folder / "run.lock") << "process 1 on another machine";  // of a run that was killed
    EXPECT_NO_THROW(FolderLock{folder});
    std::filesystem::remove_all(folder);
    EXPECT_THROW(FolderLock{folder}, Error);
}

TEST(FolderLock, SaysWhetherARunHasTheFolder) {
    const test::ScratchFolder scratch;
    const auto state = [&] { return folder_use(scratch.path()).state; };
    EXPECT_EQ(state(), FolderUse::State::free);
    EXPECT_NO_THROW(require_unused(scratch.path()));
    {
        const FolderLock lock(scratch.path());
        EXPECT_EQ(state(), FolderUse::State::held);
        EXPECT_EQ(folder_use(scratch.path()).holder.find(cat("process ", ::getpid(), " on ")), 0U);
        EXPECT_THROW(require_unused(scratch.path()), Error);
    }
    EXPECT_EQ(state(), FolderUse::State::free);
    const pid_t child = ::fork();
    if (child == 0) {
        const FolderLock lock(scratch.path());
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(state(), FolderUse::State::left);
    EXPECT_TRUE(folder_use(scratch.path()).here);
    EXPECT_NO_THROW(require_unused(scratch.path()));
    scratch.write("run.lock", "process 1 on another machine");
    EXPECT_FALSE(folder_use(scratch.path()).here);
}

// A reader looks at the lock by having it for a moment: a run that starts just then is not refused.
TEST(FolderLock, IsNotRefusedForAReader) {
    const test::ScratchFolder scratch;
    scratch.write("run.lock", "");
    const Descriptor reader(::open((scratch / "run.lock").c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::flock(reader.get(), LOCK_SH), 0);
    std::jthread looks([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ::flock(reader.get(), LOCK_UN);
    });
    EXPECT_NO_THROW(FolderLock{scratch.path()});
}

}  // namespace
}  // namespace unsloth
