#include "ops/attention_impl.h"
