// What launchers say in the environment.
#include "unsloth/comm/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

LaunchEnvironment read(const std::map<std::string, std::string>& variables) {
    return read_launch_environment([&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
    });
}

std::string refusal(const std::map<std::string, std::string>& variables, ErrorId id = "rank.environment") {
    try {
        read(variables);
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), id.name()) << error.what();
        return error.what();
    }
    return "accepted";
}

TEST(LaunchEnvironment, NothingMeansAlone) {
    EXPECT_TRUE(read({}).alone());
    EXPECT_TRUE(read({{"MASTER_ADDR", "host"}, {"MASTER_PORT", "29500"}}).alone());
    EXPECT_TRUE(read({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}}).alone())
        << "within an allocation, not started by srun";
    EXPECT_TRUE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).alone());
}

TEST(LaunchEnvironment, Torchrun) {
    const LaunchEnvironment e = read({{"RANK", "9"},
                                      {"WORLD_SIZE", "16"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "8"},
                                      {"MASTER_ADDR", "node1"},
                                      {"MASTER_PORT", "29511"},
                                      {"TORCHELASTIC_RUN_ID", "none"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                      {"TORCHELASTIC_RESTART_COUNT", "2"}});
    EXPECT_EQ(e.rank, 9);
    EXPECT_EQ(e.world_size, 16);
    EXPECT_EQ(e.local_rank, 1);
    EXPECT_EQ(e.local_world_size, 8);
    EXPECT_EQ(e.master_address, "node1");
    EXPECT_EQ(e.master_port, 29511);
    EXPECT_TRUE(e.agent_hosts_store);
    EXPECT_EQ(e.restarts, 2);
    EXPECT_EQ(e.launcher, "torchrun");
}

// accelerate starts its processes through torchrun, and adds variables of its own; a single process gets those alone.
TEST(LaunchEnvironment, Accelerate) {
    std::map<std::string, std::string> v{{"ACCELERATE_MIXED_PRECISION", "bf16"},
                                         {"ACCELERATE_DYNAMO_BACKEND", "no"},
                                         {"ACCELERATE_USE_CPU", "false"},
                                         {"OMP_NUM_THREADS", "1"}};
    EXPECT_TRUE(read(v).alone());
    v.merge(std::map<std::string, std::string>{{"RANK", "1"},
                                               {"WORLD_SIZE", "2"},
                                               {"LOCAL_RANK", "1"},
                                               {"LOCAL_WORLD_SIZE", "2"},
                                               {"GROUP_RANK", "0"},
                                               {"ROLE_RANK", "1"},
                                               {"MASTER_ADDR", "127.0.0.1"},
                                               {"MASTER_PORT", "29500"},
                                               {"TORCHELASTIC_RUN_ID", "none"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                               {"TORCHELASTIC_RESTART_COUNT", "0"},
                                               {"TORCHELASTIC_MAX_RESTARTS", "0"}});
    const LaunchEnvironment e = read(v);
    EXPECT_EQ(e.rank, 1);
    EXPECT_EQ(e.local_world_size, 2);
    EXPECT_EQ(e.launcher, "torchrun");
    EXPECT_TRUE(e.agent_hosts_store);
}

TEST(LaunchEnvironment, OpenMpiOnOneMachineNeedsAPortAlone) {
    std::map<std::string, std::string> v{{"OMPI_COMM_WORLD_RANK", "1"},
                                         {"OMPI_COMM_WORLD_SIZE", "2"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                         {"MASTER_PORT", "29500"}};
    EXPECT_EQ(read(v).master_address, "127.0.0.1");
    v["OMPI_COMM_WORLD_SIZE"] = "4";  // two machines
    EXPECT_NE(refusal(v).find("MASTER_ADDR"), std::string::npos);
    v["MASTER_ADDR"] = "node1";
    EXPECT_EQ(read(v).master_address, "node1");
    v.erase("MASTER_PORT");
    EXPECT_NE(refusal(v).find("MASTER_PORT"), std::string::npos);
}

TEST(LaunchEnvironment, SlurmMeetsAtTheFirstHost) {
    const LaunchEnvironment e = read({{"SLURM_PROCID", "5"},
                                      {"SLURM_NTASKS", "8"},
                                      {"SLURM_LOCALID", "1"},
                                      {"SLURM_NTASKS_PER_NODE", "4"},
                                      {"SLURM_JOB_ID", "1234567"},
                                      {"SLURM_JOB_NODELIST", "gpu[012-013]"}});
    EXPECT_EQ(e.rank, 5);
    EXPECT_EQ(e.local_rank, 1);
    EXPECT_EQ(e.local_world_size, 4);
    EXPECT_EQ(e.master_address, "gpu012");
    EXPECT_EQ(e.master_port, 20000 + 1234567 % 20000);
    EXPECT_EQ(first_slurm_host("gpu[003-004,7],login1"), "gpu003");
    EXPECT_EQ(first_slurm_host("a1,b2"), "a1");
    EXPECT_EQ(first_slurm_host("a1"), "a1");
    EXPECT_EQ(first_slurm_host("n[7]"), "n7");
}

TEST(LaunchEnvironment, HalfOfItIsAUsersError) {
    EXPECT_NE(refusal({{"RANK", "1"}}).find("WORLD_SIZE"), std::string::npos);
    EXPECT_NE(refusal({{"WORLD_SIZE", "2"}}).find("RANK"), std::string::npos);
    EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}).find("MASTER_ADDR"),
              std::string::npos);
    EXPECT_NE(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("rank 2 of 2"), std::string::npos);
    EXPECT_NE(refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).find("\"one\""), std::string::npos);
    EXPECT_NE(
        refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}}).find("65535"),
        std::string::npos);
}

TEST(LaunchEnvironment, OneMachineIsWhatTheLauncherSaysNotWhatRanksGuess) {
    std::map<std::string, std::string> v{
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
    EXPECT_FALSE(read(v).one_machine) << "LOCAL_WORLD_SIZE is not known";
    v["LOCAL_WORLD_SIZE"] = "2";
    EXPECT_TRUE(read(v).one_machine);
    v["WORLD_SIZE"] = "4";
    EXPECT_FALSE(read(v).one_machine);
    std::map<std::string, std::string> slurm{
        {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n1"}};
    EXPECT_FALSE(read(slurm).one_machine);
    slurm["SLURM_STEP_NUM_NODES"] = "1";
    EXPECT_TRUE(read(slurm).one_machine);
}

TEST(LaunchEnvironment, TheSecretComesFromAVariableOrAFile) {
    std::map<std::string, std::string> v{
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
    EXPECT_EQ(read(v).secret, "");
    const std::string path = testing::TempDir() + "run-secret";
    std::ofstream(path) << "0123456789abcdef-file\n";
    v["UNSLOTH_SECRET_FILE"] = path;
    EXPECT_EQ(read(v).secret, "0123456789abcdef-file");
    v["UNSLOTH_SECRET"] = "0123456789abcdef";
    EXPECT_EQ(read(v).secret, "0123456789abcdef");
    v["UNSLOTH_SECRET"] = "short";
    EXPECT_NE(refusal(v, "rank.secret").find("UNSLOTH_SECRET holds 5 characters"), std::string::npos);
    v["UNSLOTH_SECRET"] = "";
    v["UNSLOTH_SECRET_FILE"] = "/nonexistent/secret";
    EXPECT_NE(refusal(v, "rank.secret").find("UNSLOTH_SECRET_FILE"), std::string::npos);
    EXPECT_EQ(read({{"UNSLOTH_SECRET", "short"}}).secret, "") << "alone there is nobody to share it with";
}

TEST(NcclEnvironment, NamesAreCompletedAndChecked) {
    const std::vector<std::string> all = set_nccl_environment({{"socket_ifname", "lo"}, {"NCCL_DEBUG", "WARN"}});
    EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "lo");
    EXPECT_NE(std::find(all.begin(), all.end(), "NCCL_DEBUG=WARN"), all.end());
    for (const char* bad : {"", "NCCL_", "A B", "A=B"}) EXPECT_THROW(set_nccl_environment({{bad, "1"}}), Error) << bad;
    ::unsetenv("NCCL_SOCKET_IFNAME");
    ::unsetenv("NCCL_DEBUG");
}

}  // namespace
}  // namespace unsloth::comm
