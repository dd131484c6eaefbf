// What the doctor makes of values that this machine may not have.
#include "app/doctor/anonymous.h"
#include "app/doctor/findings.h"

#include <gtest/gtest.h>

namespace unsloth::app {
namespace {

TEST(Doctor, ShowsVariablesThatMatterAlone) {
    const auto findings =
        judge_environment({"HOME=/root", "NCCL_DEBUG=INFO", "HF_TOKEN=secret", "CUDA_VISIBLE_DEVICES=", "PATH=/bin"});
    ASSERT_EQ(findings.size(), 2u);
    EXPECT_EQ(findings[0].name, "CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(findings[0].value, "(empty)");
    EXPECT_EQ(findings[1].name, "NCCL_DEBUG");
    EXPECT_EQ(findings[1].verdict, Verdict::ok) << "INFO is harmless";
}

TEST(Doctor, WarnsOfForgottenSwitches) {
    const auto findings = judge_environment({"NCCL_P2P_DISABLE=1", "CUDA_LAUNCH_BLOCKING=0", "NCCL_ALGO=Tree"});
    ASSERT_EQ(findings.size(), 3u);
    EXPECT_EQ(findings[0].verdict, Verdict::ok) << findings[0].name;
    EXPECT_EQ(findings[1].verdict, Verdict::warn) << findings[1].name;
    EXPECT_EQ(findings[2].verdict, Verdict::warn) << findings[2].name;
    EXPECT_FALSE(findings[2].advice.empty());
}

TEST(Doctor, HidesPasswordsOfProxies) {
    const auto value = [](const std::string& variable) { return judge_environment({variable}).front().value; };
    EXPECT_EQ(value("UNSLOTH_SECRET=0123456789abcdef"), "***");
    EXPECT_EQ(value("https_proxy=http://user:pass@proxy:3128/"), "http://***@proxy:3128/");
    EXPECT_EQ(value("HTTP_PROXY=user:p@ss@proxy"), "***@proxy");
    EXPECT_EQ(value("no_proxy=localhost"), "localhost");
}

TEST(Doctor, ABugReportNamesNobody) {
    const Identity ann{"/home/ann", "ann", "lab-7", {"bob"}};
    EXPECT_EQ(anonymous("out: /home/ann/acme/run1: 5 GiB free", ann), "out: ~/…: 5 GiB free");
    EXPECT_EQ(anonymous("output_dir: /home/ann/Acme Bank (2)/out\nnext", ann), "output_dir: ~/…\nnext");
    EXPECT_EQ(anonymous("/home/ann: 5 GiB; /home/anna/x; /home/ann/", ann), "~: 5 GiB; /home/…; ~");
    EXPECT_EQ(anonymous("/scratch/ann/x on lab-7, planned by annual lab-70", ann),
              "/scratch/USER/x on HOST, planned by annual lab-70");
    EXPECT_EQ(anonymous("cache: /Users/Carol Low/acme: 5 GiB, /home/", ann), "cache: /Users/…: 5 GiB, /home/");
    EXPECT_EQ(anonymous("/data/bob/x, /data/bobby, bob, /mnt/bob", ann), "/data/OTHER/x, /data/bobby, bob, /mnt/OTHER");
    EXPECT_EQ(anonymous("HF_ENDPOINT: https://h/hf_abcDEF123456x/y, hf_hub", ann),
              "HF_ENDPOINT: https://h/hf_…/y, hf_hub");
    EXPECT_EQ(anonymous("/tmp: 1 GiB, localhost", {"/", "", "", {}}), "/tmp: 1 GiB, localhost");
}

TEST(Doctor, NamesHalfALaunch) {
    EXPECT_EQ(judge_environment({"RANK=0"}).back().verdict, Verdict::warn);
    EXPECT_EQ(judge_environment({"RANK=0", "WORLD_SIZE=2"}).back().verdict, Verdict::ok);
    EXPECT_EQ(judge_environment({}).front().value, "none that matter are set");
}

TEST(Doctor, SharedMemory) {
    EXPECT_EQ(judge_shared_memory(int64_t{64} << 20, int64_t{64} << 20).verdict, Verdict::warn) << "Docker's default";
    EXPECT_EQ(judge_shared_memory(int64_t{8} << 30, int64_t{8} << 30).verdict, Verdict::ok);
    EXPECT_EQ(judge_shared_memory(int64_t{8} << 30, int64_t{1} << 20).verdict, Verdict::warn) << "full";
}

TEST(Doctor, OperatorsThatAreWrongAreBroken) {
    engine_api::DeviceReport report;
    report.name = "A card";
    report.rounds = 3;
    report.operators = {{"matrix product", 0.4}, {"attention", 0.9}};
    report.pinned_bytes = int64_t{1} << 30;
    report.to_device = 55.123;
    auto findings = judge_device(report, "self-test GPU 1");
    ASSERT_EQ(findings.size(), 2u);
    EXPECT_EQ(findings[0].verdict, Verdict::ok);
    EXPECT_NE(findings[0].value.find("3 rounds of matrix product, attention: right"), std::string::npos)
        << findings[0].value;
    EXPECT_NE(findings[1].value.find("1.0 GiB granted; to the GPU 55.1 GB/s"), std::string::npos) << findings[1].value;
    report.operators[1].second = 37;
    report.pinned_problem = "out of memory";
    findings = judge_device(report, "self-test GPU 1");
    EXPECT_EQ(findings[0].verdict, Verdict::broken);
    EXPECT_NE(findings[0].value.find("WRONG: attention (37 times"), std::string::npos) << findings[0].value;
    EXPECT_EQ(findings[1].verdict, Verdict::warn);
    report.problem = "no kernel image is available";
    findings = judge_device(report, "x");
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].verdict, Verdict::broken);
}

TEST(Doctor, HealthOfACard) {
    NvmlGpu gpu;
    gpu.ecc = true;
    gpu.throttle = 0x1 | 0x4;  // idle at first, then as fast as its power allows
    EXPECT_EQ(judge_health(gpu, "GPU 0").verdict, Verdict::ok);
    gpu.throttle = 0x8;
    EXPECT_EQ(judge_health(gpu, "GPU 0").verdict, Verdict::warn);
    gpu.throttle = 0;
    gpu.watts_limit = 500, gpu.watts_usual = 700;
    EXPECT_EQ(judge_health(gpu, "GPU 0").verdict, Verdict::warn);
    EXPECT_NE(judge_health(gpu, "GPU 0").value.find("limited to 500 of 700 W"), std::string::npos);
    gpu.watts_limit = 700;
    gpu.ecc_uncorrected_ever = 5;
    EXPECT_EQ(judge_health(gpu, "GPU 0").verdict, Verdict::ok);
    gpu.ecc_uncorrected = 1;
    EXPECT_EQ(judge_health(gpu, "GPU 0").verdict, Verdict::warn);
    gpu.remap_failed = true;
    EXPECT_EQ(judge_health(gpu, "GPU 0").verdict, Verdict::broken);
}

TEST(Doctor, RatesOfDisks) {
    EXPECT_EQ(judge_disk_rate(400e6, 900e6).verdict, Verdict::ok);
    EXPECT_EQ(judge_disk_rate(20e6, 900e6).verdict, Verdict::warn);
}

TEST(Doctor, SumsAreJudgedByTheirFastest) {
    const std::string lines =
        "a rank's word\n"
        R"({"bench":"comm","device":"x","ranks":4,"bytes":1024,"ms":0.025,"bus_gb_per_second":0.06})"
        "\n"
        R"({"bench":"comm","device":"x","ranks":4,"bytes":268435456,"ms":2.0,"bus_gb_per_second":201.3})"
        "\n";
    const Finding finding = judge_sums(lines, /*nvlink=*/true);
    EXPECT_EQ(finding.verdict, Verdict::ok);
    EXPECT_EQ(finding.value, "4 GPUs: 201.3 GB/s of bus bandwidth (256 MiB), 25 us at least");
    const std::string slow = R"({"bench":"comm","ranks":2,"bytes":1048576,"ms":0.06,"bus_gb_per_second":17.0})";
    EXPECT_EQ(judge_sums(slow, true).verdict, Verdict::warn) << "NVLink is there and not used";
    EXPECT_EQ(judge_sums(slow, false).verdict, Verdict::ok);
    EXPECT_EQ(
        judge_sums(R"({"bench":"comm","ranks":2,"bytes":1048576,"ms":1.0,"bus_gb_per_second":1.0})", false).verdict,
        Verdict::warn);
    EXPECT_EQ(judge_sums("", false).verdict, Verdict::broken);
    EXPECT_EQ(judge_sums("{\"bench\":\n", false).verdict, Verdict::broken);
}

}  // namespace
}  // namespace unsloth::app
