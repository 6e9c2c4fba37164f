# What the libraries need: included by the build, and by foveaConfig.cmake of an installed package. FOVEA_DNNL_PREFIX: where
# oneDNN 3 lies if the distribution has none. FOVEA_XGRAMMAR_PREFIX: where xgrammar lies.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(dnnl 3 CONFIG REQUIRED HINTS ${FOVEA_DNNL_PREFIX})

find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

find_library(FOVEA_XGRAMMAR libxgrammar.a PATHS ${FOVEA_XGRAMMAR_PREFIX}/lib NO_DEFAULT_PATH NO_CACHE REQUIRED)
add_library(xgrammar::xgrammar STATIC IMPORTED)
set_target_properties(xgrammar::xgrammar PROPERTIES
  IMPORTED_LOCATION ${FOVEA_XGRAMMAR} INTERFACE_INCLUDE_DIRECTORIES ${FOVEA_XGRAMMAR_PREFIX}/include)
