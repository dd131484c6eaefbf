// What an LayerPrefetcher does with its slots, against copies that are as late or as early as its waits allow; and that
// it has no wait that could be left out.
#include "unsloth/weights/layer_prefetcher.h"

#include <gtest/gtest.h>

#include <numeric>

#include "unsloth/core/error.h"
#include "weights/worst_copies.h"

namespace unsloth::weights {
namespace {

using test::WorstCopies;

constexpr int layers = 7;

/// Layers' images, all different, and two slots.
class ImageStreamTest : public ::testing::Test {
  protected:
    ImageStreamTest() {
        int place = 0;
        for (int layer = 0; layer < layers; ++layer) {
            if (layer == 2) {  // lies on the device
                images.emplace_back();
                continue;
            }
            const int slot = place++ % 2, bytes = layer == 4 ? 40 : 64;  // sizes differ
            images.push_back(
                StreamedImage{at::full({bytes}, layer + 1, at::kByte), slots[slot].narrow(0, 0, bytes), slot});
        }
    }

    std::unique_ptr<LayerPrefetcher> stream(std::unique_ptr<ops::CopyStream> copies) {
        for (at::Tensor& slot : slots) slot.fill_(0xEE);
        return std::make_unique<LayerPrefetcher>(std::move(copies), images);
    }

    /// The layers that a training pass down to `lowest` asks for, `micro` times each.
    static std::vector<int> training_pass(int lowest, int micro) {
        std::vector<int> pass;
        for (int layer = 0; layer < layers; ++layer) pass.insert(pass.end(), static_cast<std::size_t>(micro), layer);
        for (int layer = layers - 1; layer >= lowest; --layer)
            pass.insert(pass.end(), static_cast<std::size_t>(micro), layer);
        return pass;
    }
    static std::vector<int> forward_pass() {
        std::vector<int> pass(layers);
        std::iota(pass.begin(), pass.end(), 0);
        return pass;
    }

    /// Walks the passes and reads every streamed layer when it is entered; where it is not released at once (products
    /// that read it as it lies), again when the layer is done. Returns whether all of it was right.
    bool walk(LayerPrefetcher& stream, const std::vector<std::vector<int>>& passes, bool releases_at_once,
              WorstCopies::Log& log) {
        bool right = true;
        const auto read = [&](int layer) {
            ++log.reads;
            const auto& image = images[static_cast<std::size_t>(layer)];
            if (image) right = right && image->slot_memory.equal(image->image);
        };
        for (const std::vector<int>& pass : passes) {
            stream.begin(ctx, pass);
            for (const int layer : pass) {
                stream.enter(ctx, layer);
                read(layer);
                if (releases_at_once) stream.release();
                if (!releases_at_once) read(layer);
            }
        }
        return right;
    }

    /// Steps with an evaluation between them, and a step that does not go down to the lowest layers.
    static std::vector<std::vector<int>> passes(int micro) {
        return {training_pass(0, micro), training_pass(0, micro), forward_pass(),
                forward_pass(),          training_pass(3, micro), training_pass(3, micro)};
    }

    ops::Context ctx{at::kCPU};
    std::array<at::Tensor, 2> slots{at::empty({64}, at::kByte), at::empty({64}, at::kByte)};
    std::vector<std::optional<StreamedImage>> images;
};

TEST_F(ImageStreamTest, EveryLayerIsInItsSlotWhenItIsRead) {
    for (const int micro : {1, 3})
        for (const bool at_once : {true, false}) {
            SCOPED_TRACE(cat(micro, " micro-batches, ", at_once ? "expanded" : "read as it lies"));
            WorstCopies::Log log, again;
            const auto late = stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::latest, log));
            EXPECT_TRUE(walk(*late, passes(micro), at_once, log));
            const auto early =
                stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::earliest, again, log.copies));
            EXPECT_TRUE(walk(*early, passes(micro), at_once, again));
            EXPECT_EQ(again.copies.size(), log.copies.size());
        }
}

TEST_F(ImageStreamTest, NoWaitCanBeLeftOut) {
    for (const bool at_once : {true, false}) {
        SCOPED_TRACE(at_once ? "expanded" : "read as it lies");
        WorstCopies::Log log;
        ASSERT_TRUE(
            walk(*stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::latest, log)), passes(2), at_once, log));
        EXPECT_GT(log.waits_for_copies, 30);
        for (int wait = 0; wait < log.waits_for_copies; ++wait) {
            // Before a pass the last of several copies is waited for as well, and copies are done in order.
            const auto next = static_cast<std::size_t>(wait) + 1;
            if (next < log.reads_at_a_wait.size() && log.reads_at_a_wait[next] == log.reads_at_a_wait[next - 1])
                continue;
            WorstCopies::Log other;
            const auto broken = stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::latest, other,
                                                                     std::vector<WorstCopies::Copied>{}, -1, wait));
            EXPECT_FALSE(walk(*broken, passes(2), at_once, other)) << "without the wait for copy number " << wait;
        }
        EXPECT_GT(log.waits_for_compute, 20);
        for (int wait = 2; wait <= log.waits_for_compute; ++wait) {  // nothing was read before the first one
            WorstCopies::Log other;
            const auto broken =
                stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::earliest, other, log.copies, wait));
            EXPECT_FALSE(walk(*broken, passes(2), at_once, other)) << "without the wait for compute number " << wait;
        }
    }
}

TEST_F(ImageStreamTest, ALayerIsCopiedOnceATraversal) {
    WorstCopies::Log log;
    const auto images_of = stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::latest, log));
    walk(*images_of, {training_pass(0, 4)}, true, log);
    EXPECT_EQ(log.copies.size(), 10U) << "six layers up; the two on top stay for the way down";
    walk(*images_of, {training_pass(0, 4)}, true, log);
    EXPECT_EQ(log.copies.size(), 18U) << "the two lowest stay for the next pass";
}

/// Recorded work leaves behind what it left when it was recorded, without a call here.
TEST_F(ImageStreamTest, GoesOnFromWhereRecordedWorkLeavesOff) {
    WorstCopies::Log log;
    const auto recorded = stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::latest, log));
    const std::vector<int> pass = training_pass(0, 1);
    ASSERT_TRUE(walk(*recorded, {pass}, true, log));
    recorded->begin(ctx, pass);
    for (int layer = 0; layer < layers; ++layer) {
        recorded->enter(ctx, layer);
        recorded->release();
    }
    const LayerPrefetcher::State forward = recorded->state();
    const std::array<at::Tensor, 2> left{slots[0].clone(), slots[1].clone()};
    ASSERT_TRUE(walk(*recorded, {forward_pass()}, true, log));
    recorded->begin(ctx, pass);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) slots[slot].copy_(left[slot]);  // the replay
    recorded->assume(forward);
    for (int layer = layers - 1; layer >= 0; --layer) {
        recorded->enter(ctx, layer);
        const auto& image = images[static_cast<std::size_t>(layer)];
        EXPECT_TRUE(!image || image->slot_memory.equal(image->image)) << layer;
        recorded->release();
    }
}

TEST_F(ImageStreamTest, AnotherOrderThanThePassSaidIsAMistake) {
    WorstCopies::Log log;
    const auto images_of = stream(std::make_unique<WorstCopies>(ctx, WorstCopies::When::latest, log));
    images_of->begin(ctx, forward_pass());
    images_of->enter(ctx, 0);
    EXPECT_THROW(images_of->enter(ctx, 3), std::exception);
}

}  // namespace
}  // namespace unsloth::weights
