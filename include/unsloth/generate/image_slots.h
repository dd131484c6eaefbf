// Places for the keys of prompts' images, which some layers read besides the cache of tokens: a slot an image.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace unsloth::generate {

/// The images of a prompt have adjacent slots. Prompts with the same images share them, and they stay for later ones
/// until others need the room.
class ImageSlots {
  public:
    explicit ImageSlots(int64_t count) : count_(count) {}

    /// What the keys depend on: the weights and adapters that make them, and the images.
    using Key = std::vector<int32_t>;
    /// The first of `images` adjacent slots, which are held from here on; nothing where held ones leave no
    /// room. CheckError for more than there are.
    std::optional<int64_t> acquire(const Key& key, int64_t images);
    /// Of slots that acquire() gave, by their first.
    void release(int64_t first);
    /// Whether a pass has made their keys, and that one does.
    bool has_keys(int64_t first) const;
    void note_keys(int64_t first);

    int64_t count() const { return count_; }

  private:
    struct Taken {
        int64_t first = 0, images = 0, holders = 0;
        uint64_t used = 0;  ///< when it was last acquired
        bool has_keys = false;
        Key key;
        bool meets(int64_t begin, int64_t end) const { return first < end && first + images > begin; }
    };
    Taken& at(int64_t first);
    const Taken& at(int64_t first) const;

    int64_t count_;
    uint64_t uses_ = 0;
    std::vector<Taken> taken_;
};

}  // namespace unsloth::generate
