#include "unsloth/weights/packed_layer.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth::weights {
namespace {

TEST(PackedLayer, PartsLieApartAndAligned) {
    PackedLayer image;
    image.add("codes", at::kByte, 700);
    image.add("maxima", at::kFloat, 3);
    image.add("nothing", at::kFloat, 0);
    image.add("matrix", at::kBFloat16, 257);
    const at::Tensor memory = at::zeros({image.bytes()}, at::kByte);
    EXPECT_EQ(image.bytes() % 512, 0);
    image.part(memory, "codes").fill_(7);
    image.part(memory, "maxima").fill_(1.5);
    image.part(memory, "matrix").fill_(-2);
    EXPECT_EQ(image.part(memory, "nothing").numel(), 0);
    EXPECT_TRUE(image.part(memory, "codes").eq(7).all().item<bool>());
    EXPECT_TRUE(image.part(memory, "maxima").eq(1.5).all().item<bool>());
    EXPECT_TRUE(image.part(memory, "matrix").eq(-2).all().item<bool>());
    for (const char* name : {"codes", "maxima", "matrix"}) {
        const auto* begin = static_cast<const std::byte*>(image.part(memory, name).const_data_ptr());
        EXPECT_EQ((begin - static_cast<const std::byte*>(memory.const_data_ptr())) % 512, 0) << name;
    }
}

TEST(PackedLayer, NamesItsPartsOnce) {
    PackedLayer image;
    image.add("codes", at::kByte, 8);
    EXPECT_THROW(image.add("codes", at::kByte, 8), CheckError);
    const at::Tensor memory = at::zeros({image.bytes()}, at::kByte);
    EXPECT_THROW(image.part(memory, "maxima"), CheckError);
    EXPECT_THROW(image.part(memory.narrow(0, 0, 8), "codes"), CheckError);
}

}  // namespace
}  // namespace unsloth::weights
