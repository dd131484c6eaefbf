#include "unsloth/formats/checkpoint_folder.h"
#include "common/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/run_state.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;

class CheckpointFolderTest : public ::testing::Test {
  protected:
    fs::path write(int64_t step, const std::string& content = "tensors") const {
        CheckpointWriter writer(folder, step);
        write_file_atomically(writer.folder() / "a.bin", content);
        write_file_atomically(writer.folder() / "b.json", "{}");
        writer.commit();
        return writer.path();
    }
    std::vector<int64_t> steps() const {
        std::vector<int64_t> found;
        for (const CheckpointFolder& c : list_checkpoints(folder)) found.push_back(c.step);
        return found;
    }
    test::ScratchFolder scratch;
    const fs::path& folder = scratch.path();
};

TEST_F(CheckpointFolderTest, IsThereWhollyOrNotAtAll) {
    const fs::path path = write(12);
    EXPECT_EQ(path, folder / "checkpoint-12");
    EXPECT_EQ(find_damage(path), std::nullopt);
    {
        CheckpointWriter writer(folder, 13);
        write_file_atomically(writer.folder() / "a.bin", "x");
    }
    EXPECT_EQ(steps(), std::vector<int64_t>{12});
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "an abandoned one leaves nothing";
}

TEST_F(CheckpointFolderTest, HoldsFilesBelowFolders) {
    CheckpointWriter writer(folder, 4);
    fs::create_directory(writer.folder() / "templates");
    write_file_atomically(writer.folder() / "templates" / "tool.jinja", "text");
    writer.commit();
    EXPECT_EQ(find_damage(writer.path()), std::nullopt);
    std::ofstream(writer.path() / "templates" / "tool.jinja") << "test";
    EXPECT_NE(find_damage(writer.path()).value_or("none").find("templates/tool.jinja was changed"), std::string::npos);
}

TEST_F(CheckpointFolderTest, ReplacesOneOfTheSameStep) {
    write(3, "old");
    write(3, "new");
    EXPECT_EQ(read_file(folder / "checkpoint-3" / "a.bin"), "new");
    EXPECT_EQ(find_damage(folder / "checkpoint-3"), std::nullopt);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(CheckpointFolderTest, FindsEveryDamage) {
    const auto damage_after = [&](const std::function<void(const fs::path&)>& spoil) {
        const fs::path path = write(1);
        spoil(path);
        return find_damage(path).value_or("none");
    };
    const auto put = [](const fs::path& file, const std::string& text) { std::ofstream(file) << text; };
    EXPECT_NE(damage_after([](const fs::path& p) { fs::remove(p / "manifest.json"); }).find("no manifest"),
              std::string::npos);
    EXPECT_NE(damage_after([](const fs::path& p) { fs::remove(p / "b.json"); }).find("b.json is missing"),
              std::string::npos);
    EXPECT_NE(damage_after([&](const fs::path& p) { put(p / "a.bin", "tensor"); }).find("6 bytes instead of 7"),
              std::string::npos);
    EXPECT_NE(damage_after([&](const fs::path& p) { put(p / "a.bin", "tensorz"); }).find("was changed"),
              std::string::npos);
    EXPECT_NE(damage_after([&](const fs::path& p) { put(p / "manifest.json", "{"); }), "none");
    EXPECT_NE(damage_after([&](const fs::path& p) {
                  put(p / "manifest.json", R"({"version": 99, "files": []})");
              }).find("later version"),
              std::string::npos);
    for (const char* name : {"../x", "a/../../x", "/x", "", ".", "a/"})
        EXPECT_NE(damage_after([&](const fs::path& p) {
                      put(p / "manifest.json",
                          cat(R"({"version": 1, "files": [{"name": ")", name, R"(", "bytes": 1, "xxh3_128": ""}]})"));
                  }).find("a file's name"),
                  std::string::npos)
            << name;
}

TEST_F(CheckpointFolderTest, KeepsTheNewestAndTheBest) {
    for (const int64_t step : {2, 4, 6, 8, 10}) write(step);
    remove_old_checkpoints(folder, 0, std::nullopt);
    EXPECT_EQ(steps().size(), 5U);
    remove_old_checkpoints(folder, 3, 4);
    EXPECT_EQ(steps(), (std::vector<int64_t>{10, 8, 4}));
    remove_old_checkpoints(folder, 1, 4);
    EXPECT_EQ(steps(), (std::vector<int64_t>{10, 4})) << "the newest stays beside the best";
    remove_old_checkpoints(folder, 1, 7);
    EXPECT_EQ(steps(), std::vector<int64_t>{10}) << "a best one that is not there takes no place";
}

TEST_F(CheckpointFolderTest, ListsNumbersAlone) {
    for (const char* name : {"checkpoint-7", "checkpoint-10", "checkpoint-", "checkpoint-7x", "checkpoint--1",
                             "checkpoint-5.tmp-1", "checkpoint-99999999999999999999", "other"})
        fs::create_directories(folder / name);
    std::ofstream(folder / "checkpoint-11") << "a file";
    EXPECT_EQ(steps(), (std::vector<int64_t>{10, 7}));
}

TEST_F(CheckpointFolderTest, LeavesWhatIsNoneOfTheRuns) {
    const test::ScratchFolder elsewhere;
    const fs::path precious = elsewhere.write("checkpoint/file", "content");
    for (const int64_t step : {2, 4}) write(step);
    fs::create_directory_symlink(precious.parent_path(), folder / "checkpoint-3");
    fs::create_directory_symlink(precious.parent_path(), folder / "checkpoint-5.tmp-77");
    fs::create_directory_symlink(precious.parent_path(), folder / "checkpoint-5.old-77");
    remove_unfinished_checkpoints(folder);
    write(3);
    EXPECT_FALSE(fs::is_symlink(folder / "checkpoint-3"));
    fs::create_directory_symlink(precious.parent_path(), folder / "checkpoint-1");
    remove_old_checkpoints(folder, 1, std::nullopt);
    EXPECT_EQ(steps(), std::vector<int64_t>{4});
    EXPECT_EQ(read_file(precious), "content");
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    fs::create_directory_symlink(precious.parent_path(), folder / "checkpoint-9");
    write(8);
    for (const char* name : {"checkpoint-8", "checkpoint-9"})
        ASSERT_EQ(::lchown((folder / name).c_str(), 12345, 12345), 0);
    EXPECT_EQ(steps(), std::vector<int64_t>{4});
    EXPECT_EQ(foreign_checkpoints(folder).size(), 2U);
    EXPECT_EQ(find_damage_of_own(folder / "checkpoint-8"), "it belongs to another user");
    write(10);
    remove_old_checkpoints(folder, 1, std::nullopt);
    EXPECT_TRUE(fs::exists(folder / "checkpoint-8" / "manifest.json"));
    EXPECT_THROW(write(8), Error);
    EXPECT_THROW(write(9), Error);
    EXPECT_EQ(read_file(precious), "content");
}

TEST_F(CheckpointFolderTest, ClearsWhatAKilledRunLeft) {
    write(4);
    write(5);
    fs::rename(folder / "checkpoint-4", folder / "checkpoint-4.old-77");  // killed between the renames of a replacement
    fs::copy(folder / "checkpoint-5", folder / "checkpoint-5.old-77");    // killed before the old one was removed
    fs::create_directories(folder / "checkpoint-6.tmp-77");
    fs::create_directories(folder / "mine.tmp-77");
    remove_unfinished_checkpoints(folder);
    EXPECT_EQ(steps(), (std::vector<int64_t>{5, 4}));
    EXPECT_EQ(find_damage(folder / "checkpoint-4"), std::nullopt);
    EXPECT_TRUE(fs::exists(folder / "mine.tmp-77"));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 3);
}

TEST_F(CheckpointFolderTest, RunStateKeepsEveryBit) {
    RunState state;
    RunProgress& progress = state.progress;
    progress.step = 41;
    progress.epoch = 0.1 + 0.2;
    progress.seen_tokens = int64_t{1} << 53;
    progress.optimizer = {.updates = 40, .loss_scale = 1.0 / 3.0, .good_steps = 7};
    progress.best = {.value = 2.000000000000001, .step = 30};
    progress.worse_evaluations = 2;
    progress.unlogged = {.sum = 2.0 / 3.0, .steps = 3};
    progress.plateau = PlateauProgress{1e-5 / 3, 0.7, true, 2, 1};
    progress.evaluation_due = true;
    state.per_device_train_batch_size = 8;
    state.world_size = 4;
    state.cpu_threads = 6;
    state.data = "d";
    state.parameters = "p";
    write_run_state(folder, state);
    const RunState read = read_run_state(folder);
    EXPECT_EQ(read.progress.step, 41);
    EXPECT_EQ(read.progress.epoch, progress.epoch);
    EXPECT_EQ(read.progress.seen_tokens, progress.seen_tokens);
    EXPECT_EQ(read.progress.optimizer.updates, 40);
    EXPECT_EQ(read.progress.optimizer.loss_scale, progress.optimizer.loss_scale);
    EXPECT_EQ(read.progress.optimizer.good_steps, 7);
    EXPECT_EQ(read.progress.best.value, progress.best.value);
    EXPECT_EQ(read.progress.worse_evaluations, 2);
    EXPECT_EQ(read.progress.best.step, 30);
    EXPECT_EQ(read.progress.unlogged.sum, progress.unlogged.sum);
    EXPECT_EQ(read.progress.unlogged.steps, 3);
    ASSERT_TRUE(read.progress.plateau);
    EXPECT_EQ(read.progress.plateau->learning_rate, progress.plateau->learning_rate);
    EXPECT_EQ(read.progress.plateau->bad_evaluations, 2);
    EXPECT_TRUE(read.progress.evaluation_due);
    EXPECT_EQ(read.world_size, 4);
    EXPECT_EQ(read.cpu_threads, 6);
    for (const char* bad : {"", "[]", "{}", R"({"version": 3, "step": 1})", R"({"version": 2, "step": -1})"}) {
        std::ofstream(folder / "run_state.json") << bad;
        EXPECT_THROW(read_run_state(folder), Error) << bad;
    }
}

}  // namespace
}  // namespace unsloth::formats
