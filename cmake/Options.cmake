# Language, warnings, sanitizers, compiler cache.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 does not know nvcc 13's C++20 mode
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Without these the cache would refuse precompiled headers. It may refuse objects whose headers changed while they were
# compiled (no include_file_mtime): kept, they would come back as those of the changed header.
find_program(CCACHE ccache)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

add_library(unsloth_warnings INTERFACE)
target_compile_options(unsloth_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers>
  # GCC 13 takes any function of a temporary that returns a reference for a dangling one.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-dangling-reference>
  # clang wants braces around each of the rows of a table of arrays.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wno-missing-braces>
  # GCC 12's optimiser sees overflows in its own std::string that are not there (its bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Werror=all-warnings>)

# GCC collects its garbage from 128 MB on; a file with LibTorch's or JSON's headers stays below 1 GB without, and takes 10 to 25 % less time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()

# Products and sums are rounded one by one: bit-exactness with the ecosystem's formats must not depend on the machine.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
add_link_options($<$<CONFIG:Release>:-s>)
add_link_options("LINKER:--build-id=sha1")  # caches and processes tell builds by it; not every toolchain has it by default

# Indices and iterators of the standard library are checked in every build: a wrong index ends the process.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-D_GLIBCXX_ASSERTIONS>)

if(UNSLOTH_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${UNSLOTH_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>  # false alarms of instrumented code
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all> $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${UNSLOTH_SANITIZE})
endif()

if(UNSLOTH_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "libFuzzer comes with clang; this is ${CMAKE_CXX_COMPILER_ID}. Use the preset fuzz.")
  endif()
  # A conversion of a number that its type cannot hold is undefined too, but not among what `undefined` watches.
  set(unsloth_fuzz_sanitizers address,undefined,float-cast-overflow)
  add_compile_options(-fsanitize=fuzzer-no-link,${unsloth_fuzz_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${unsloth_fuzz_sanitizers})
endif()
