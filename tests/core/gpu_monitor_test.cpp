// The driver's version, as each of its two sources tells it.
#include "unsloth/core/gpu_monitor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "common/files.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(GpuDriverVersion, IsTheKernelModulesWhereThereIsNoNvml) {
    if (::dlopen("libnvidia-ml.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "NVML answers first here";
    const test::ScratchFolder root;
    EXPECT_EQ(gpu_driver_version(root.path()), "");
    root.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (a@b)  Sun Jul 27\n"
               "GCC version:  gcc version 12.2.0\n");
    EXPECT_EQ(gpu_driver_version(root.path()), "580.65.06");
    root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54\n");
    EXPECT_EQ(gpu_driver_version(root.path()), "550.54");
    root.write("proc/driver/nvidia/version", "of another form\n");
    EXPECT_EQ(gpu_driver_version(root.path()), "");
}

/// A library that is loaded already is found by its soname.
TEST(GpuDriverVersion, IsNvmlsWhereItAnswers) {
    const test::ScratchFolder folder;
    const auto source = folder.write("nvml.c",
                                     "static int begun;\n"
                                     "int nvmlInit_v2(void) { begun = 1; return 0; }\n"
                                     "int nvmlShutdown(void) { begun = 0; return 0; }\n"
                                     "int nvmlSystemGetDriverVersion(char* t, unsigned n) {\n"
                                     "    if (!begun || n < 8) return 1;\n"
                                     "    __builtin_strcpy(t, \"580.1.2\");\n"
                                     "    return 0;\n"
                                     "}\n");
    const std::string library = (folder / "fake.so").string();
    const std::string command =
        cat("c++ -x c -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o ", library, " ", source.string(), " 2>/dev/null");
    if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no compiler called c++ here";
    void* const fake = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(fake, nullptr) << ::dlerror();
    EXPECT_EQ(gpu_driver_version(folder.path()), "580.1.2");
    ::dlclose(fake);
}

}  // namespace
}  // namespace unsloth
