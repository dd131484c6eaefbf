// Names of repositories, and what is found in a cache without asking anybody.
#include "hub/cache.h"
#include "common/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;

const std::string commit(40, 'c');

class Cache : public testing::Test {
  protected:
    Cache() {
        ::setenv("HF_HUB_CACHE", cache_.path().c_str(), 1);
        ::setenv("HF_HUB_OFFLINE", "1", 1);
    }
    ~Cache() override { ::unsetenv("HF_HUB_CACHE"); }
    void write(const std::string& name, const std::string& text) const {
        const fs::path path = folder() / name;
        fs::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    fs::path folder() const { return cache_ / "models--org--name"; }
    CachedRepository repository() const { return {cache_.path(), *parse_repository(Kind::model, "org/name")}; }
    /// Wants a.json and b/c.json of what there is.
    Request request(bool whole) const {
        const auto choose = [](const std::vector<std::string>& files) {
            std::vector<std::string> wanted;
            for (const std::string& file : files)
                if (file == "a.json" || file == "b/c.json") wanted.push_back(file);
            return wanted;
        };
        return {*parse_repository(Kind::model, "org/name"), choose, [whole](const fs::path&) { return whole; }};
    }

    test::ScratchFolder cache_;
};

std::string words(Kind kind, const std::string& text) {
    const auto found = parse_repository(kind, text);
    if (!found) return "none";
    return cat(found->kind == Kind::dataset ? "dataset " : "model ", found->id, " ", found->revision, " ",
               found->inside);
}

TEST(Repository, AConfigurationIsAFolderOfIt) {
    const test::ScratchFolder local;
    const std::string here = local.path().string();
    for (const auto& [path, expected] : {std::pair<std::string, std::string>{"org/name", "hf://datasets/org/name/main"},
                                         {"hf://datasets/org/name", "hf://datasets/org/name/main"},
                                         {"org/name@v1", "hf://datasets/org/name@v1/main"},
                                         {"no/such/folder", "no/such/folder/main"},
                                         {here, here + "/main"},
                                         {here + "/", here + "/main"}})
        EXPECT_EQ(folder_of_configuration(path, "main"), expected);
    EXPECT_EQ(folder_of_configuration("org/name", ""), "org/name");
}

TEST(Repository, Names) {
    EXPECT_EQ(words(Kind::model, "org/name"), "model org/name main ");
    EXPECT_EQ(words(Kind::dataset, "o-r_g/n.a-m_e.1"), "dataset o-r_g/n.a-m_e.1 main ");
    EXPECT_EQ(words(Kind::model, "org/name@v1.0"), "model org/name v1.0 ");
    EXPECT_EQ(words(Kind::model, "org/name@refs/pr/1"), "model org/name refs/pr/1 ");
    EXPECT_EQ(words(Kind::model, "hf://org/name@v1"), "model org/name v1 ");
    EXPECT_EQ(words(Kind::model, "hf://models/org/name"), "model org/name main ");
    EXPECT_EQ(words(Kind::model, "hf://datasets/org/name@v1/a/*.parquet"), "dataset org/name v1 a/*.parquet");
    for (const char* const none : {"",
                                   "name",
                                   "/name",
                                   "org/",
                                   "a/b/c",
                                   "./name",
                                   "../name",
                                   "org/..",
                                   "org/na me",
                                   "org--x/name",
                                   "org/na--me",
                                   "org/name@",
                                   "org/name@../x",
                                   "org/name@/x",
                                   "org/n*",
                                   "hf://org",
                                   "hf://datasets/org/name/../../x",
                                   "hf://datasets/org/name//etc",
                                   "https://host/x",
                                   "~/name"})
        EXPECT_EQ(words(Kind::model, none), "none") << none;
}

TEST(SafePath, StaysInItsFolder) {
    for (const char* const safe : {"a.json", "a/b.c/d", "..a", "a b"}) EXPECT_TRUE(is_safe_path(safe)) << safe;
    for (const char* const unsafe : {"", "/a", "../a", "a/../../b", "a/..", ".", "a/./b", "a\\b", "a\nb", "a/"})
        EXPECT_FALSE(is_safe_path(unsafe)) << unsafe;
}

TEST_F(Cache, IsFoundWhereItIsWhole) {
    EXPECT_EQ(find(request(true)), std::nullopt);
    write("refs/main", commit + "\n");
    EXPECT_EQ(find(request(true)), std::nullopt);
    write("snapshots/" + commit + "/a.json", "{}");
    EXPECT_EQ(find(request(true)), folder() / "snapshots" / commit);
    EXPECT_EQ(find(request(false)), std::nullopt);
    // What the repository has is known: this decides.
    repository().write_tree(commit, {{"a.json", {2, std::string(40, '1'), "", ""}},
                                     {"b/c.json", {2, std::string(40, '2'), std::string(64, '3'), ""}}});
    EXPECT_EQ(find(request(true)), std::nullopt);
    write("snapshots/" + commit + "/b/c.json", "{}");
    EXPECT_EQ(find(request(false)), folder() / "snapshots" / commit);
    const auto tree = repository().tree(commit);
    ASSERT_TRUE(tree);
    EXPECT_EQ(tree->at("b/c.json").hash(), std::string(64, '3'));
    EXPECT_EQ(tree->at("a.json").hash(), std::string(40, '1'));
}

TEST_F(Cache, OfRefsThatLeadElsewhereIsRefused) {
    write("refs/main", "../../../elsewhere");
    EXPECT_THROW(find(request(true)), Error);
}

TEST_F(Cache, WithABrokenListIsAskedForAgain) {
    write("refs/main", commit);
    write("snapshots/" + commit + "/a.json", "{}");
    for (const char* const text :
         {"", "{", "[]", "{\"format_version\": 2, \"files\": {}}", "{\"format_version\": 1, \"files\": {\"a\": 5}}"}) {
        write("trees/" + commit + ".json", text);
        EXPECT_FALSE(repository().tree(commit)) << text;
        EXPECT_EQ(find(request(true)), folder() / "snapshots" / commit);
    }
}

TEST_F(Cache, OfflineTakesWhatIsThere) {
    try {
        obtain(request(false));
        ADD_FAILURE() << "no error";
    } catch (const Error& failure) {
        EXPECT_EQ(failure.id().name(), "hub.not-downloaded");
        EXPECT_NE(std::string(failure.what()).find("hf download org/name"), std::string::npos) << failure.what();
    }
    write("refs/main", commit);
    write("snapshots/" + commit + "/a.json", "{}");
    EXPECT_EQ(obtain(request(false)), folder() / "snapshots" / commit);
    // Not a part of what is known to be more.
    repository().write_tree(
        commit, {{"a.json", {2, std::string(40, '1'), "", ""}}, {"b/c.json", {2, std::string(40, '2'), "", ""}}});
    EXPECT_THROW(obtain(request(false)), Error);
}

}  // namespace
}  // namespace unsloth::hub
