#include "unsloth/core/folder_lock.h"
#include "common/files.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

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

}  // namespace
}  // namespace unsloth
