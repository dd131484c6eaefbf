// What a run does about the Hugging Face hub, before it trains and after.
#pragma once

#include "unsloth/config/config.h"

namespace unsloth::app {

/// The exit code of a run that trained and saved, and whose upload failed.
inline constexpr int not_uploaded = 5;

/// Checks that training.push_to_hub may succeed, and creates the repository unless the run trains nothing. Errors as
/// hub::require_pushable.
void require_upload(const config::Config& config);

/// Uploads what is in the output folder. False when that failed; the log then says why, and how to upload it later.
/// Interrupted when stopped.
bool upload_result(const config::Config& config);

}  // namespace unsloth::app
