// Runs that were started apart, each a process, on one base in host memory: one copy, and the bits of a run alone.
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdio>
#include <thread>

#include "common/child.h"
#include "train/streamed_weights.h"
#include "unsloth/core/build_id.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/weights/base_identity.h"

namespace unsloth {
namespace {

using namespace test;

const StreamedCase on_host{"all on the host", std::vector<spec::Place>(matrix_layers, spec::Place::host), {}},
    resident{"resident", std::vector<spec::Place>(matrix_layers, spec::Place::device), {}};

std::string share_of(const model::Model& model) {
    const memory::CommonMemory::Share share = model.parts().common_memory->share();
    return cat("own ", share.own, " filled ", share.filled, " found ", share.found);
}

std::string text_of(const std::vector<float>& losses) {
    std::string text;
    for (const float loss : losses) {
        char digits[32];
        std::snprintf(digits, sizeof digits, "%a ", static_cast<double>(loss));
        text += digits;
    }
    return text;
}

/// "BASE FOLDER": trains, says after the first step whose memory it has, goes on when it is told to, and says its
/// losses.
TEST(CommonBaseChild, DISABLED_Trains) {
    const std::string argument = Child::argument();
    const auto base = static_cast<Base>(argument[0] - '0');
    const StreamedRun run = run_streamed(base, on_host, at::kCPU, at::kFloat, fs::path(argument.substr(2)),
                                         [](int step, const model::Model& model) {
                                             if (step > 0) return;
                                             Child::say(share_of(model));
                                             Child::heard();
                                         });
    Child::say(text_of(run.losses));
}

/// "BASE FOLDER": stops in the middle of reading the base, with a layer half there.
TEST(CommonBaseChild, DISABLED_StopsWhileItLoads) {
    const std::string argument = Child::argument(), folder = argument.substr(2);
    const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder));
    const model::ModelPlan plan(file,
                                streamed_request(static_cast<Base>(argument[0] - '0'), on_host, at::kCPU, at::kFloat));
    memory::CommonMemory memory(plan.common(), weights::base_identity(*file, at::kCPU), at::kCPU);
    memory.fill([](memory::BufferId, const at::Tensor& bytes) {
        bytes.narrow(0, 0, bytes.numel() / 2).fill_(7);
        Child::say("half");
        Child::heard();
    });
}

std::string of(Base base, const fs::path& folder) {
    return cat(static_cast<int>(base), " ", folder.string());
}

int64_t bytes_of(const memory::Plan& plan) {
    int64_t bytes = 0;
    for (const memory::Entry& entry : plan.entries()) bytes += entry.bytes;
    return bytes;
}

int64_t bytes_on_host(Base base) {
    const model::ModelPlan plan(
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(base).string())),
        streamed_request(base, on_host, at::kCPU, at::kFloat));
    return bytes_of(plan.common());
}

class CommonBase : public ::testing::TestWithParam<Base> {};

TEST_P(CommonBase, IsThereOnceAndChangesNoBit) {
    const Base base = GetParam();
    const int64_t bytes = bytes_on_host(base);
    const StreamedRun alone = run_streamed(base, resident, at::kCPU, at::kFloat);
    Child first("CommonBaseChild.DISABLED_Trains", of(base, base_folder(base))),
        killed("CommonBaseChild.DISABLED_Trains", of(base, base_folder(base)));
    const auto of_both = [&](const std::string& one, const std::string& other) {
        int64_t filled = 0, found = 0, own = 0;
        for (const std::string& text : {one, other}) {
            int64_t a = 0, b = 0, c = 0;
            EXPECT_EQ(std::sscanf(text.c_str(), "own %ld filled %ld found %ld", &a, &b, &c), 3) << text;
            own += a, filled += b, found += c;
        }
        EXPECT_EQ(own, 0);
        EXPECT_EQ(filled, bytes) << "each piece is read by one of them";
        EXPECT_EQ(found, bytes);
    };
    of_both(first.hear(), killed.hear());
    const StreamedRun third =
        run_streamed(base, on_host, at::kCPU, at::kFloat, std::nullopt, [&](int step, const model::Model& model) {
            EXPECT_EQ(share_of(model), cat("own 0 filled 0 found ", bytes));
            if (step == 1) killed.kill();  // while all train
        });
    EXPECT_EQ(third.losses, alone.losses);
    EXPECT_EQ(third.evaluations, alone.evaluations);
    EXPECT_TRUE(same_bits(third.gradients_P, alone.gradients_P));
    EXPECT_TRUE(same_bits(third.values_P, alone.values_P));
    first.tell("go on");
    EXPECT_EQ(first.hear(), text_of(alone.losses));
    EXPECT_EQ(first.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, CommonBase, ::testing::Values(Base::nf4_on_the_way_in, Base::mixed),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(CommonBaseKilled, IsReadByOthersWhereTheFirstWasLoading) {
    const Base base = Base::nf4_on_the_way_in;
    const StreamedRun alone = run_streamed(base, resident, at::kCPU, at::kFloat);
    Child first("CommonBaseChild.DISABLED_StopsWhileItLoads", of(base, base_folder(base)));
    ASSERT_EQ(first.hear(), "half");
    std::jthread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        first.kill();
    });
    const StreamedRun run =
        run_streamed(base, on_host, at::kCPU, at::kFloat, std::nullopt, [&](int, const model::Model& model) {
            EXPECT_EQ(share_of(model), cat("own 0 filled ", bytes_on_host(base), " found 0"));
        });
    EXPECT_EQ(run.losses, alone.losses);
    EXPECT_TRUE(same_bits(run.values_P, alone.values_P));
}

/// Changes the last byte, which belongs to a tensor, and gives the file back the time of its last change.
void change_a_byte(const fs::path& file) {
    const auto time = fs::last_write_time(file);
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(-1, std::ios::end);
    const int byte = stream.get();
    stream.seekp(-1, std::ios::end);
    stream.put(static_cast<char>(byte ^ 1));
    stream.close();
    fs::last_write_time(file, time);
}

TEST(CommonBaseIdentity, IsThatOfTheBytes) {
    const ScratchFolder scratch;
    fs::copy(base_folder(Base::bf16), scratch / "one");
    const auto identity = [](const fs::path& folder) {
        return weights::base_identity(formats::WeightFile::open(folder.string()), at::kCPU);
    };
    const std::string before = identity(scratch / "one");
    EXPECT_EQ(before.size(), 32U);
    EXPECT_EQ(identity(scratch / "one"), before);
    fs::copy(scratch / "one", scratch / "copy");
    EXPECT_NE(identity(scratch / "copy"), before) << "nobody knows that it is equal";
    change_a_byte(scratch / "one" / "model.safetensors");
    EXPECT_NE(identity(scratch / "one"), before) << "a change in place, of equal size and time";
}

TEST(CommonBaseIdentity, IsThatOfBothLibrariesThatMakeTheBytes) {
    const auto build_of = [](const char* library) {
        const void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
        return loaded == nullptr ? "not loaded" : build_id(static_cast<const link_map*>(loaded)->l_ld);
    };
    const auto [engine, base] = weights::base_makers();
    EXPECT_EQ(engine, build_of("libunsloth_engine.so"));
    EXPECT_EQ(base, build_of("libunsloth_base.so"));
    EXPECT_FALSE(engine.empty());
    EXPECT_FALSE(base.empty());
    EXPECT_NE(engine, base);
}

TEST(CommonBaseIdentity, AnotherBaseHasACopyOfItsOwn) {
    const ScratchFolder scratch;
    fs::copy(base_folder(Base::bf16), scratch / "other");
    change_a_byte(scratch / "other" / "model.safetensors");
    Child first("CommonBaseChild.DISABLED_Trains", of(Base::bf16, base_folder(Base::bf16)));
    const int64_t bytes = bytes_on_host(Base::bf16);
    EXPECT_EQ(first.hear(), cat("own 0 filled ", bytes, " found 0"));
    run_streamed(Base::bf16, on_host, at::kCPU, at::kFloat, scratch / "other", [&](int, const model::Model& model) {
        EXPECT_EQ(share_of(model), cat("own 0 filled ", bytes, " found 0"));
    });
    // The same tensors in another form are other bytes, too.
    run_streamed(Base::nf4_on_the_way_in, on_host, at::kCPU, at::kFloat, base_folder(Base::bf16),
                 [&](int, const model::Model& model) {
                     EXPECT_EQ(share_of(model),
                               cat("own 0 filled ", bytes_on_host(Base::nf4_on_the_way_in), " found 0"));
                 });
}

TEST(CommonBasePlan, DoesNotCountWhatIsThere) {
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(Base::bf16).string()));
    model::LoadRequest request = streamed_request(Base::bf16, on_host, at::kCPU, at::kFloat);
    const auto held = [&] { return std::make_shared<memory::HeldMemory>(weights::base_identity(*file, at::kCPU)); };
    request.held = held();
    const int64_t bytes = bytes_on_host(Base::bf16);
    const model::ModelPlan before(file, request);
    EXPECT_EQ(before.need().there, 0);
    EXPECT_EQ(before.table_text().find("are there"), std::string::npos);
    Child first("CommonBaseChild.DISABLED_Trains", of(Base::bf16, base_folder(Base::bf16)));
    first.hear();
    request.held = held();
    const model::ModelPlan plan(file, request);
    EXPECT_EQ(plan.need().there, bytes);
    EXPECT_EQ(plan.need().host, before.need().host) << "the plan is the same";
    EXPECT_NE(plan.table_text().find("once for all processes with this base ("), std::string::npos);
    const at::Device gpu(at::kCUDA, 0);
    const int64_t plenty = int64_t{1} << 40, rest = plan.need().host - bytes;
    EXPECT_FALSE(placement::holds({plenty, rest}, before.need(), gpu));
    EXPECT_TRUE(placement::holds({plenty, rest}, plan.need(), gpu));
    EXPECT_FALSE(placement::holds({plenty, rest - 1}, plan.need(), gpu));
    spec::RunPlan half = plan.request().run;
    for (std::size_t layer = 0; layer < matrix_layers / 2; ++layer) half.layers[layer].weights_at = spec::Place::device;
    EXPECT_EQ(plan.estimate(half).there, bytes / 2) << "what such a plan does not read is not credited";
    // What a plan counts on stays there until it is loaded.
    first.kill();
    EXPECT_EQ(plan.need().there, bytes);
    ops::Context ctx(at::kCPU);
    {
        const model::ModelParts parts = plan.load(ctx);
        EXPECT_EQ(parts.common_memory->share().found, bytes);
        EXPECT_EQ(request.held->bytes(), 0) << "let go";
    }
    EXPECT_EQ(held()->bytes(), 0);
}

/// Whose teacher is the same base, with other adapters or none.
TEST(CommonBasePlan, OfAStudentCountsOnWhatItsTeacherTakesBefore) {
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(Base::bf16).string()));
    const auto held = [&] { return std::make_shared<memory::HeldMemory>(weights::base_identity(*file, at::kCPU)); };
    model::LoadRequest request = streamed_request(Base::bf16, on_host, at::kCPU, at::kFloat), of_teacher = request;
    of_teacher.trains = of_teacher.sizes.training = false;
    of_teacher.lora.reset();
    for (std::size_t layer = 0; layer < 2; ++layer) of_teacher.run.layers[layer].weights_at = spec::Place::device;
    of_teacher.held = held();
    request.held = held();
    const model::ModelPlan teacher(file, of_teacher), before(file, request);
    const int64_t bytes = bytes_of(teacher.common()), all = bytes_of(before.common());
    EXPECT_EQ(before.need().there, 0);
    request.held->expect(teacher.common());
    EXPECT_EQ(request.held->bytes(), bytes);
    const model::ModelPlan student = before.with(request);
    EXPECT_EQ(student.need().there, bytes);
    EXPECT_EQ(student.need().host, before.need().host);
    ops::Context ctx(at::kCPU);
    const model::ModelParts first = teacher.load(ctx), second = student.load(ctx);
    EXPECT_EQ(second.common_memory->share().found, bytes);
    EXPECT_EQ(second.common_memory->share().filled, all - bytes);
    EXPECT_EQ(request.held->bytes(), 0) << "let go";
}

/// Embeddings that are in host memory whatever the plan, and take more than is free there.
TEST(CommonBasePlan, IsAsFastWhereOthersHoldWhatThisHostHasNoRoomFor) {
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(Base::bf16).string()));
    model::LoadRequest request = streamed_request(Base::bf16, resident, at::kCUDA, at::kBFloat16);
    request.offload_embedding = true;
    const memory::Plan embedding = model::ModelPlan(file, request).common();
    ASSERT_EQ(embedding.entries().size(), 1U);
    const std::string owner = cat("chosen-", ::getpid());
    constexpr int64_t plenty = int64_t{1} << 40;
    const auto chosen = [&](int64_t free) {
        request.held = std::make_shared<memory::HeldMemory>(owner);
        model::ModelPlan plan(file, request);
        placement::choose_memory_use({}, plan, 1, placement::Machine{planner::find_card("H200"), true, {plenty, free}});
        return planner::run_plan_json(plan.request().run);
    };
    const std::string fastest = chosen(plenty);
    const int64_t little = bytes_of(embedding) / 2;
    EXPECT_NE(chosen(little), fastest);
    memory::CommonMemory others(embedding, owner, at::kCPU);
    others.fill([](memory::BufferId, const at::Tensor& piece) { piece.fill_(1); });
    EXPECT_EQ(chosen(little), fastest);
}

}  // namespace
}  // namespace unsloth
