#include "unsloth/core/lost_map.h"
#include "common/files.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/staged_folder.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

class LostMap : public testing::Test {
  protected:
    LostMap() { std::ofstream(file()) << std::string(std::size_t{1} << 20, 'x'); }
    fs::path file() const { return root_ / "model\x1b.safetensors"; }

    struct End {
        int status = 0;
        std::string err;
    };
    /// How a process ends that does this.
    template <class Work>
    End end_of(Work work) const {
        const pid_t pid = ::fork();
        if (pid == 0) {
            const rlimit none{0, 0};
            ::setrlimit(RLIMIT_CORE, &none);
            (void)!std::freopen((root_ / "err").c_str(), "w", stderr);
            end_cleanly_on_lost_maps();
            work();
            ::_exit(0);
        }
        End end;
        EXPECT_EQ(::waitpid(pid, &end.status, 0), pid);
        end.err = read_file(root_ / "err");
        return end;
    }
    static int sum(const MappedFile& map) {
        int total = 0;
        for (const std::byte byte : map.bytes()) total += static_cast<int>(byte);
        return total;
    }

    test::ScratchFolder scratch_;
    const fs::path& root_ = scratch_.path();
};

TEST_F(LostMap, NamesTheFileAndRemovesWhatWasTemporary) {
    const End end = end_of([&] {
        const MappedFile first(file()), other(root_ / "err");
        MappedFile moved(file());
        const MappedFile map = std::move(moved);
        const AtomicFile saved(root_ / "saved", 0), half(root_ / "half", 100);
        AtomicFile done(root_ / "done", 0);
        done.finish();
        const StagedFolder staged(root_ / "out");
        fs::create_directories(staged.path() / "a" / "b");
        for (int i = 0; i < 100; ++i) std::ofstream(staged.path() / "a" / cat("file", i)) << "x";
        const AtomicFile inside(staged.path() / "a" / "b" / "c", 0);
        fs::resize_file(file(), 5000);
        ::_exit(sum(map));
    });
    ASSERT_TRUE(WIFEXITED(end.status)) << "signal " << WTERMSIG(end.status);
    EXPECT_EQ(WEXITSTATUS(end.status), 4);
    EXPECT_NE(end.err.find("unsloth-train: error[disk.file-lost]: " + root_.string() +
                           "/model\\u001b.safetensors has become shorter while it was read\n"),
              std::string::npos)
        << end.err;
    for (const auto& entry : fs::directory_iterator(root_))
        EXPECT_TRUE(entry.path() == file() || entry.path() == root_ / "err" || entry.path() == root_ / "done")
            << entry.path();
}

TEST_F(LostMap, OtherBusErrorsEndTheProcessAsBefore) {
    const End raised = end_of([] { ::raise(SIGBUS); });
    EXPECT_TRUE(WIFSIGNALED(raised.status) && WTERMSIG(raised.status) == SIGBUS);
    const End unknown = end_of([&] {
        std::FILE* const open = std::fopen(file().c_str(), "r");
        const auto* const bytes =
            static_cast<const volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, ::fileno(open), 0));
        {
            const MappedFile closed(file());
        }
        fs::resize_file(file(), 0);
        (void)bytes[4096];
    });
    EXPECT_TRUE(WIFSIGNALED(unknown.status) && WTERMSIG(unknown.status) == SIGBUS);
}

TEST_F(LostMap, ASystemCallThatReadsItSaysSo) {
    const MappedFile map(file());
    const AtomicFile copy(root_ / "copy", 0);
    fs::resize_file(file(), 4096);
    try {
        copy.write_at(map.bytes(), 0);
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        EXPECT_NE(std::string(error.what()).find("safetensors has become shorter while it was read"), std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace unsloth
