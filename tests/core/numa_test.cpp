#include "unsloth/core/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <fstream>

#include "common/files.h"

namespace unsloth {
namespace {

TEST(Numa, NamesADevicesNodeWhereThereAreSeveral) {
    const test::ScratchFolder root;
    const auto write = [&](const std::string& file, const char* text) {
        std::filesystem::create_directories((root / file).parent_path());
        std::ofstream(root / file) << text << "\n";
    };
    EXPECT_EQ(numa_node_of("0000:17:00.0", root.path()), std::nullopt) << "no /sys";
    write("sys/devices/system/node/online", "0-1");
    EXPECT_EQ(numa_node_of("0000:17:00.0", root.path()), std::nullopt) << "no such device";
    write("sys/bus/pci/devices/0000:a7:00.0/numa_node", "1");
    write("sys/bus/pci/devices/0000:18:00.0/numa_node", "-1");
    EXPECT_EQ(numa_node_of("0000:A7:00.0", root.path()), 1);
    EXPECT_EQ(numa_node_of("0000:18:00.0", root.path()), std::nullopt) << "the firmware does not say";
    EXPECT_EQ(numa_node_of("", root.path()), std::nullopt);
    write("sys/devices/system/node/online", "0");
    EXPECT_EQ(numa_node_of("0000:a7:00.0", root.path()), std::nullopt) << "one node";
}

TEST(Numa, MemoryOfAPreferredNodeIsThere) {
    constexpr std::size_t bytes = 1 << 20;
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(data, MAP_FAILED);
    const bool preferred = use_numa_nodes(data, bytes, {0});
    // A sandbox may know no such call; a node that is not there is refused everywhere.
    EXPECT_TRUE(preferred || errno == ENOSYS || errno == EPERM || errno == 0) << errno;
    EXPECT_FALSE(use_numa_nodes(data, bytes, {1023}));
    EXPECT_FALSE(use_numa_nodes(data, bytes, {}));
    static_cast<volatile char*>(data)[bytes - 1] = 1;
    ::munmap(data, bytes);
}

}  // namespace
}  // namespace unsloth
