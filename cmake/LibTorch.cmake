# Imported targets for the LibTorch inside the PyPI wheel `torch`.
#
# find_package(Torch) insists on a CUDA toolkit and carries its own flags, so the targets are made here:
#   unsloth::torch_cpu    libc10, libtorch_cpu
#   unsloth::torch_cuda   the above, libc10_cuda, libtorch_cuda (only with UNSLOTH_CUDA)
# UNSLOTH_SITE_PACKAGES names the folder that holds torch/ and nvidia/.
if(NOT DEFINED UNSLOTH_SITE_PACKAGES)
  file(GLOB site_packages LIST_DIRECTORIES true "${PROJECT_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages")
  if(site_packages)
    list(GET site_packages 0 UNSLOTH_SITE_PACKAGES)
  endif()
endif()
set(torch_root "${UNSLOTH_SITE_PACKAGES}/torch")
if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch in '${torch_root}'. Run scripts/setup.sh, or set UNSLOTH_SITE_PACKAGES to a "
                      "site-packages folder that holds torch.")
endif()

# The folders that the loader must search: torch's own and those of the nvidia wheels it depends on.
file(GLOB nvidia_lib_dirs LIST_DIRECTORIES true "${UNSLOTH_SITE_PACKAGES}/nvidia/*/lib")
set(UNSLOTH_TORCH_RPATH "${torch_root}/lib" ${nvidia_lib_dirs})

function(unsloth_import_torch_library name)
  add_library(unsloth::${name} SHARED IMPORTED)
  set_target_properties(unsloth::${name} PROPERTIES IMPORTED_LOCATION "${torch_root}/lib/lib${name}.so")
endfunction()

add_library(unsloth_torch_headers INTERFACE)
target_include_directories(unsloth_torch_headers SYSTEM INTERFACE
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include")
target_compile_definitions(unsloth_torch_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=1)

unsloth_import_torch_library(c10)
unsloth_import_torch_library(torch_cpu)
add_library(unsloth_torch_cpu INTERFACE)
# libtorch_cpu needs cudart, cupti and more at run time; the linker must not chase them.
target_link_libraries(unsloth_torch_cpu INTERFACE unsloth_torch_headers unsloth::torch_cpu unsloth::c10)
# at::parallel_for is a template: without this it is a plain loop, whatever LibTorch does. The wheel brings libgomp.
target_compile_options(unsloth_torch_headers INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_options(unsloth_torch_cpu INTERFACE -fopenmp)
target_link_options(unsloth_torch_cpu INTERFACE "LINKER:--allow-shlib-undefined" "LINKER:--no-as-needed")
add_library(unsloth::torch ALIAS unsloth_torch_cpu)

if(UNSLOTH_CUDA)
  unsloth_import_torch_library(c10_cuda)
  unsloth_import_torch_library(torch_cuda)
  target_link_libraries(unsloth_torch_cpu INTERFACE unsloth::torch_cuda unsloth::c10_cuda)
endif()
