# The page is put together once and taken into the program as it is (page.cpp). To be included after the module `server`.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(page_dir ${CMAKE_CURRENT_SOURCE_DIR}/page)
set(page_gz ${CMAKE_CURRENT_BINARY_DIR}/page.html.gz)
add_custom_command(
  OUTPUT ${page_gz}
  COMMAND Python3::Interpreter ${page_dir}/make_page.py ${page_dir} ${page_gz}
  DEPENDS ${page_dir}/index.html ${page_dir}/page.css ${page_dir}/page.js ${page_dir}/make_page.py
  VERBATIM)
set_source_files_properties(page.cpp PROPERTIES OBJECT_DEPENDS ${page_gz} COMPILE_DEFINITIONS "FOVEA_PAGE_GZ=\"${page_gz}\"")
