# cmake --install: the program, the public headers, the libraries, and a package: find_package(fovea) gives fovea::fovea (the
# engine) and fovea::kernels. It may be moved; its dependencies are found where it is used, except oneDNN and xgrammar, which
# come along where tools/deps.sh had to fetch them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)

# Our targets that `target` is linked from, itself among them.
function(fovea_linked_from target found)
  set(targets ${${found}})
  if(NOT target MATCHES "^fovea_" OR target IN_LIST targets)
    return()
  endif()
  list(APPEND targets ${target})
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  foreach(link ${links})
    fovea_linked_from(${link} targets)
  endforeach()
  set(${found} ${targets} PARENT_SCOPE)
endfunction()

set(libraries)
fovea_linked_from(fovea_engine libraries)
foreach(library ${libraries})
  string(REPLACE fovea_ "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
endforeach()
set_target_properties(fovea_engine PROPERTIES EXPORT_NAME fovea)

install(TARGETS ${libraries} EXPORT fovea ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT fovea NAMESPACE fovea:: FILE foveaTargets.cmake DESTINATION ${package_dir})
install(TARGETS fovea)
install(DIRECTORY include/fovea TYPE INCLUDE)
install(FILES LICENSE TYPE DOC)

configure_package_config_file(cmake/foveaConfig.cmake.in foveaConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(foveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/foveaConfig.cmake ${CMAKE_BINARY_DIR}/foveaConfigVersion.cmake cmake/library_dependencies.cmake
  DESTINATION ${package_dir})

install(DIRECTORY ${FOVEA_XGRAMMAR_PREFIX}/ DESTINATION ${CMAKE_INSTALL_LIBDIR}/fovea/xgrammar)
get_filename_component(dnnl_root ${dnnl_DIR}/../../.. ABSOLUTE)
if(dnnl_root STREQUAL FOVEA_DNNL_PREFIX)  # in a folder of its own: it may lie beside the distribution's
  install(DIRECTORY ${dnnl_root}/ DESTINATION ${CMAKE_INSTALL_LIBDIR}/fovea/onednn USE_SOURCE_PERMISSIONS)
  file(RELATIVE_PATH from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(fovea PROPERTIES INSTALL_RPATH $ORIGIN/${from_bin}/fovea/onednn/lib)
endif()
