#include "unsloth/generate/beside.h"

#include "unsloth/generate/decoder.h"

namespace unsloth::generate {

BesideRule beside_rule(const planner::DecodingTime& time, const BesideBounds& bounds) {
    return [time, bounds](int64_t rows, int64_t keys, int64_t cached) {
        const double alone = time.pass_ms(rows, rows, keys);
        Beside chosen{bounds.otherwise, /*singly=*/false};
        for (int64_t bucket = bucket_of(rows + bounds.fewest_singly);; bucket = bucket_of(bucket + 1)) {
            const int64_t tokens = bucket - rows, read = tokens * cached + tokens * (tokens + 1) / 2;
            if (tokens > bounds.most || time.pass_ms(bucket, rows, keys + read) > bounds.longest * alone) return chosen;
            chosen = {tokens, /*singly=*/true};
        }
    };
}

}  // namespace unsloth::generate
