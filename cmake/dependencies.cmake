# Everything comes from Debian packages, except oneDNN 3 where the distribution still has 2 (tools/deps.sh fetches it).
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED)

pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(CAIRO REQUIRED IMPORTED_TARGET cairo)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

list(APPEND CMAKE_PREFIX_PATH ${CMAKE_SOURCE_DIR}/.deps/onednn)
find_package(dnnl 3 CONFIG REQUIRED)

if(FOVEA_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
