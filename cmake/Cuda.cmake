# cuBLASLt, cuDNN and the CUDA runtime from the wheels that LibTorch itself uses, named by their versioned files (the
# wheels hold no unversioned ones), so that the program and LibTorch load the same copy.
set(cuda_wheel "${UNSLOTH_SITE_PACKAGES}/nvidia/cu13")
set(cudnn_wheel "${UNSLOTH_SITE_PACKAGES}/nvidia/cudnn")
file(GLOB cudnn_frontend_header "${UNSLOTH_SITE_PACKAGES}/include/cudnn_frontend.h")
if(NOT cudnn_frontend_header)
  message(FATAL_ERROR "No cudnn_frontend.h under ${UNSLOTH_SITE_PACKAGES}/include. Run scripts/setup.sh.")
endif()

# As two arguments the compiler cache can make the path relative; "-isystem=PATH" it takes as it is.
set(CMAKE_INCLUDE_SYSTEM_FLAG_CUDA "-isystem ")
add_library(unsloth_cuda INTERFACE)
target_include_directories(unsloth_cuda SYSTEM INTERFACE
  "${cuda_wheel}/include" "${cudnn_wheel}/include" "${UNSLOTH_SITE_PACKAGES}/nvidia/nccl/include" "${UNSLOTH_SITE_PACKAGES}/include")
target_link_libraries(unsloth_cuda INTERFACE
  "${cuda_wheel}/lib/libcudart.so.13" "${cuda_wheel}/lib/libcublasLt.so.13"
  "${cuda_wheel}/lib/libnvrtc.so.13" "${cudnn_wheel}/lib/libcudnn.so.9")  # cuDNN's frontend refers to NVRTC
target_compile_definitions(unsloth_cuda INTERFACE UNSLOTH_CUDA=1)
# LibTorch's own CUDA headers include cuda_runtime.h.
target_link_libraries(unsloth_torch_headers INTERFACE unsloth_cuda)
