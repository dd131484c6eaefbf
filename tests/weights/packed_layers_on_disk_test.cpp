// Images that are read from files, past the page cache or through it.
#include "unsloth/weights/packed_layers_on_disk.h"
#include "common/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "unsloth/core/error.h"

namespace unsloth::weights {
namespace {

namespace fs = std::filesystem;

class DiskImagesTest : public ::testing::Test {
  protected:
    /// A file of so many bytes, in memory and on the disk.
    at::Tensor make_file(const fs::path& path, int64_t bytes) {
        const at::Tensor content = at::randint(0, 256, {bytes}, at::kByte);
        std::ofstream(path, std::ios::binary)
            .write(static_cast<const char*>(content.data_ptr()), static_cast<std::streamsize>(bytes));
        return content;
    }
    std::unique_ptr<DiskStream> stream(DiskFiles files) {
        return std::make_unique<DiskStream>(std::move(files), memory, copies, 2, at::kCPU);
    }

    test::ScratchFolder folder;
    ops::Context ctx{at::kCPU};
    ops::CopyStream copies{ctx, 2 + DiskStream::buffers};
    at::Tensor memory = at::empty({DiskStream::memory_bytes}, at::kByte);
};

TEST_F(DiskImagesTest, AnyRangesOfAnyFilesBecomeAnImage) {
    const int64_t bytes = 3 * DiskStream::buffer_bytes + 777;
    const at::Tensor a = make_file(folder / "a", bytes), b = make_file(folder / "b", 5000);
    DiskFiles files;
    const int in_a = files.add(folder / "a"), in_b = files.add(folder / "b");
    EXPECT_EQ(files.add(folder / "a"), in_a);
    const at::Tensor rest = at::full({100}, 7, at::kByte);
    DiskImage all{{{in_a, 0, bytes, 0}}, rest, bytes};  // to the very end of the file
    DiskImage parts{{{in_b, 4999, 1, 0}, {in_a, 4095, DiskStream::buffer_bytes + 2, 1}, {in_b, 1, 4000, 6'000'000}},
                    at::Tensor(),
                    0};
    parts.rest = at::empty({0}, at::kByte);
    const auto disk = stream(std::move(files));
    for (int round = 0; round < 3; ++round) {  // more pieces than buffers
        const at::Tensor one = at::zeros({bytes + 100}, at::kByte), other = at::zeros({7'000'000}, at::kByte);
        disk->fetch(all, one, 0);
        disk->fetch(parts, other, 1);
        disk->wait(0);
        EXPECT_TRUE(one.narrow(0, 0, bytes).equal(a));
        EXPECT_TRUE(one.narrow(0, bytes, 100).equal(rest));
        disk->wait(1);
        EXPECT_EQ(other[0].item<int>(), b[4999].item<int>());
        EXPECT_TRUE(
            other.narrow(0, 1, DiskStream::buffer_bytes + 2).equal(a.narrow(0, 4095, DiskStream::buffer_bytes + 2)));
        EXPECT_TRUE(other.narrow(0, 6'000'000, 4000).equal(b.narrow(0, 1, 4000)));
    }
}

TEST_F(DiskImagesTest, CountsWhatItReadsAndReadsAlone) {
    const int64_t bytes = DiskStream::buffer_bytes + 777;
    const at::Tensor content = make_file(folder / "a", bytes);
    DiskFiles files;
    const DiskImage image{{{files.add(folder / "a"), 0, bytes, 0}}, at::empty({0}, at::kByte), 0};
    const auto disk = stream(std::move(files));
    const at::Tensor slot = at::zeros({bytes}, at::kByte);
    disk->fetch(image, slot, 0);
    disk->wait(0);
    EXPECT_EQ(disk->counts().bytes, bytes);
    const DiskStream::Counts alone = disk->read_alone({&image}, std::chrono::milliseconds(20));
    EXPECT_GE(alone.bytes, bytes);
    EXPECT_EQ(alone.bytes % bytes, 0);
    EXPECT_LE(alone.cached, alone.bytes);
    EXPECT_EQ(disk->counts().bytes, bytes + alone.bytes);
    slot.zero_();
    disk->fetch(image, slot, 1);  // and it goes on as before
    disk->wait(1);
    EXPECT_TRUE(slot.equal(content));
}

TEST_F(DiskImagesTest, AFileThatBecomesShorterIsNamed) {
    make_file(folder / "a", 100'000);
    DiskFiles files;
    const DiskImage image{{{files.add(folder / "a"), 0, 100'000, 0}}, at::empty({0}, at::kByte), 0};
    const auto disk = stream(std::move(files));
    const at::Tensor slot = at::zeros({100'000}, at::kByte);
    disk->fetch(image, slot, 0);
    disk->wait(0);
    fs::resize_file(folder / "a", 99'999);
    disk->fetch(image, slot, 0);
    try {
        disk->wait(0);
        FAIL() << "a byte is missing";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "disk.file-lost");
        EXPECT_NE(std::string(error.what()).find((folder / "a").string() + " has become shorter"), std::string::npos)
            << error.what();
    }
    EXPECT_THROW(disk->wait(0), Error) << "and again";
}

TEST_F(DiskImagesTest, ADiskThatStallsIsWaitedForAndTold) {
    struct Stalling : ops::CopyStream {
        using CopyStream::CopyStream;
        void host_waits(int) override { std::this_thread::sleep_for(std::chrono::milliseconds(300)); }
    } stalling(ctx, 2 + DiskStream::buffers);
    const at::Tensor content = make_file(folder / "a", 1000);
    DiskFiles files;
    const DiskImage image{{{files.add(folder / "a"), 0, 1000, 0}}, at::empty({0}, at::kByte), 0};
    DiskStream disk(std::move(files), memory, stalling, 2, at::kCPU, std::chrono::milliseconds(50));
    const at::Tensor slot = at::zeros({1000}, at::kByte);
    ::testing::internal::CaptureStderr();
    disk.fetch(image, slot, 0);
    disk.wait(0);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("waiting for the disk: a layer's weights in " + (folder / "a").string()), std::string::npos)
        << said;
    EXPECT_TRUE(slot.equal(content));
}

/// Nothing is mapped at address 0: the kernel answers with EIO, as for a disk's fault.
TEST_F(DiskImagesTest, AFaultOfTheDiskIsNamed) {
    DiskFiles files;
    const DiskImage image{{{files.add("/proc/self/mem"), 0, 100, 0}}, at::empty({0}, at::kByte), 0};
    const auto disk = stream(std::move(files));
    disk->fetch(image, at::zeros({100}, at::kByte), 0);
    try {
        disk->wait(0);
        FAIL() << "address 0 was read";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("/proc/self/mem cannot be read any more: Input/output error"),
                  std::string::npos)
            << error.what();
    }
}

TEST_F(DiskImagesTest, AFileThatLosesItsNameIsReadOn) {
    const at::Tensor content = make_file(folder / "a", 100'000);
    DiskFiles files;
    const DiskImage image{{{files.add(folder / "a"), 0, 100'000, 0}}, at::empty({0}, at::kByte), 0};
    const auto disk = stream(std::move(files));
    fs::remove(folder / "a");
    const at::Tensor slot = at::zeros({100'000}, at::kByte);
    disk->fetch(image, slot, 0);
    disk->wait(0);
    EXPECT_TRUE(slot.equal(content));
}

TEST_F(DiskImagesTest, AFileThatIsNotThereIsNamed) {
    DiskFiles files;
    EXPECT_THROW(files.add(folder / "none"), Error);
}

}  // namespace
}  // namespace unsloth::weights
