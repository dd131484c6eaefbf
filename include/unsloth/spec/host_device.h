// Functions that host code and kernels share.
#pragma once

#ifdef __CUDACC__
#define UNSLOTH_HOST_DEVICE_FUNCTION __host__ __device__ inline
#else
#define UNSLOTH_HOST_DEVICE_FUNCTION inline
#endif
