# Everything comes from Debian packages, except oneDNN 3 where the distribution still has 2, and xgrammar (tools/deps.sh fetches
# both).
set(FOVEA_DNNL_PREFIX ${CMAKE_SOURCE_DIR}/.deps/onednn)
set(FOVEA_XGRAMMAR_PREFIX ${CMAKE_SOURCE_DIR}/.deps/xgrammar)
include(cmake/library_dependencies.cmake)
find_package(CLI11 REQUIRED)
find_package(Boost 1.74 REQUIRED)        # headers: Asio and Beast
find_package(prometheus-cpp CONFIG REQUIRED COMPONENTS core)
pkg_check_modules(CAIRO REQUIRED IMPORTED_TARGET cairo)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)

if(FOVEA_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
