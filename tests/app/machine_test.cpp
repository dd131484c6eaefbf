// What the machine allows: lists of CPUs, control groups, GPUs, as /proc and /sys say it.
#include "app/machine/cpu_list.h"
#include "app/machine/gpus.h"
#include "app/machine/limits.h"
#include "app/machine/nvml.h"
#include "common/files.h"

namespace unsloth::app {
namespace {

TEST(CpuList, ReadsWhatLinuxWrites) {
    EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (CpuList{0, 1, 2, 3, 8, 10, 11}));
    EXPECT_EQ(parse_cpu_list("5"), CpuList{5});
    EXPECT_EQ(parse_cpu_list(""), CpuList{});
    EXPECT_EQ(parse_cpu_list("\n"), CpuList{});
    EXPECT_EQ(parse_cpu_list("4,2,2-3"), (CpuList{2, 3, 4})) << "sorted, each once";
}

TEST(CpuList, RefusesAnythingElse) {
    for (const char* text : {"a", "1,", ",1", "3-1", "1-", "-1", "1 2", "0-99999999999", "1--2"})
        EXPECT_EQ(parse_cpu_list(text), std::nullopt) << text;
}

TEST(CpuList, WritesTheShortestForm) {
    for (const char* text : {"", "0", "0-3,8,10-11", "1,3,5"}) EXPECT_EQ(format_cpu_list(*parse_cpu_list(text)), text);
    EXPECT_EQ(common_cpus({0, 1, 2, 5}, {1, 5, 9}), (CpuList{1, 5}));
    EXPECT_EQ(common_cpus({0, 1}, {}), CpuList{});
}

TEST(Cgroup, Version2TakesTheTightestOnTheWay) {
    const test::ScratchFolder root;
    root.write("proc/self/cgroup", "0::/slice/job\n");
    root.write("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
    root.write("sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
    root.write("sys/fs/cgroup/slice/job/memory.max", "8589934592\n");
    root.write("sys/fs/cgroup/slice/job/memory.current", "1000\n");
    root.write("sys/fs/cgroup/slice/memory.max", "max\n");
    const CgroupLimits limits = cgroup_limits(root.path());
    EXPECT_EQ(limits.cpus, 2.5);
    EXPECT_EQ(limits.memory, int64_t{8} << 30);
    EXPECT_EQ(limits.memory_used, 1000);
}

TEST(Cgroup, InAContainerTheMountIsTheGroup) {
    const test::ScratchFolder root;
    root.write("proc/self/cgroup", "0::/../../kubepods/pod1\n");
    root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
    EXPECT_EQ(cgroup_limits(root.path()).cpus, 0.5);
}

TEST(Cgroup, Version1) {
    const test::ScratchFolder root;
    root.write("proc/self/cgroup", "9:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n");
    root.write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "400000\n");
    root.write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
    root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    root.write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
    const CgroupLimits limits = cgroup_limits(root.path());
    EXPECT_EQ(limits.cpus, 4);
    EXPECT_EQ(limits.memory, std::nullopt) << "its largest number means none";
}

TEST(Cgroup, AvailableMemoryIsTheLesserOfTheMachinesAndTheGroups) {
    const test::ScratchFolder root;
    root.write("proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
    EXPECT_EQ(available_memory(root.path()), 1000 * 1024);
    root.write("proc/self/cgroup", "0::/job\n");
    root.write("sys/fs/cgroup/job/memory.max", "800000\n");
    root.write("sys/fs/cgroup/job/memory.current", "700000\n");
    EXPECT_EQ(available_memory(root.path()), 100000);
    root.write("sys/fs/cgroup/job/memory.stat", "anon 600000\nactive_file 30000\ninactive_file 20000\nfile 90000\n");
    EXPECT_EQ(available_memory(root.path()), 150000) << "caches of files are given back";
    root.write("sys/fs/cgroup/job/memory.max", "90000000\n");
    EXPECT_EQ(available_memory(root.path()), 1000 * 1024);
}

TEST(Cgroup, NothingThereIsNoLimit) {
    const test::ScratchFolder root;
    EXPECT_EQ(cgroup_limits(root.path()).cpus, std::nullopt);
    EXPECT_EQ(cgroup_limits(root.path()).memory, std::nullopt);
}

TEST(Machine, ThisProcessHasCpus) {
    EXPECT_FALSE(allowed_cpus().empty());
    EXPECT_GE(usable_cpus(), 1);
    EXPECT_LE(usable_cpus(), static_cast<int>(allowed_cpus().size()));
}

TEST(Gpus, FromTheKernelModulesFolder) {
    const test::ScratchFolder root;
    EXPECT_TRUE(find_gpus(root.path()).gpus.empty());
    root.write("proc/driver/nvidia/gpus/0000:ad:00.0/information",
               "Model: \t\t NVIDIA H200\nIRQ:   \t\t 90\nGPU UUID: \t GPU-b\nBus Location: \t 0000:ad:00.0\n");
    root.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-a\n");
    const GpuInventory found = find_gpus(root.path());
    ASSERT_EQ(found.gpus.size(), 2u);
    EXPECT_EQ(found.gpus[0].pci, "0000:18:00.0");
    EXPECT_EQ(found.gpus[1].pci, "0000:ad:00.0");
    EXPECT_EQ(found.gpus[1].name, "NVIDIA H200");
    EXPECT_EQ(found.gpus[1].uuid, "GPU-b");
    EXPECT_EQ(found.found_through, "/proc/driver/nvidia/gpus");
}

TEST(Gpus, FromDeviceNodes) {
    const test::ScratchFolder root;
    for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"})
        root.write(std::string("dev/") + name, "");
    const GpuInventory found = find_gpus(root.path());
    EXPECT_EQ(found.gpus.size(), 3u);
    EXPECT_EQ(found.gpus[0].pci, "");
}

std::string addresses(const std::vector<Gpu>& gpus) {
    std::string text;
    for (const Gpu& gpu : gpus) text += gpu.pci.empty() ? "?" : gpu.pci;
    return text;
}

TEST(Gpus, VisibleOnesByCudasRules) {
    const std::vector<Gpu> equal{{"a", "H200", "GPU-11"}, {"b", "H200", "GPU-12"}, {"c", "H200", "GPU-13"}};
    const auto visible = [&](std::optional<std::string> value) {
        return addresses(visible_gpus(equal, value, std::nullopt));
    };
    EXPECT_EQ(visible(std::nullopt), "abc");
    EXPECT_EQ(visible(""), "");
    EXPECT_EQ(visible("2,0"), "ca");
    EXPECT_EQ(visible(" 1 , 2"), "bc");
    EXPECT_EQ(visible("0,-1,2"), "a") << "what stands behind a wrong entry is ignored";
    EXPECT_EQ(visible("0,7,2"), "a");
    EXPECT_EQ(visible("GPU-13,GPU-11"), "ca");
    EXPECT_EQ(visible("GPU-9"), "");
    EXPECT_EQ(visible("MIG-0123"), "?");
    EXPECT_EQ(visible("none"), "");
}

TEST(Gpus, UnequalCardsAreNumberedByCudaAlone) {
    const std::vector<Gpu> unequal{{"a", "T4", "GPU-1"}, {"b", "H200", "GPU-2"}};
    EXPECT_EQ(addresses(visible_gpus(unequal, std::nullopt, std::nullopt)), "??");
    EXPECT_EQ(addresses(visible_gpus(unequal, "1", std::nullopt)), "?");
    EXPECT_EQ(addresses(visible_gpus(unequal, "1", "PCI_BUS_ID")), "b");
    EXPECT_EQ(addresses(visible_gpus(unequal, "GPU-2", std::nullopt)), "b") << "a UUID says which one";
}

TEST(Gpus, PciNamesAreThoseOfSysfs) {
    EXPECT_EQ(pci_name(0, 0xAD, 3), "0000:ad:03.0");
}

}  // namespace
}  // namespace unsloth::app
