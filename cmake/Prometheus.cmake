# libunsloth_prometheus.so, which serves a run's metrics by prometheus-cpp; where that is not installed, it is left out, and
# training.report_to prometheus says so.
find_package(prometheus-cpp QUIET COMPONENTS pull)
if(prometheus-cpp_FOUND)
  add_library(unsloth_prometheus SHARED src/report/prometheus/endpoint.cpp)
  target_include_directories(unsloth_prometheus PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(unsloth_prometheus PRIVATE prometheus-cpp::pull unsloth_warnings nlohmann_json::nlohmann_json)
  set_target_properties(unsloth_prometheus PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
else()
  message(STATUS "No prometheus-cpp: built without the metrics endpoint (scripts/setup.sh installs it)")
endif()
