#include "server/page.h"

// The assembler takes the file as it is: half a megabyte as an array of C++ would be compiled.
asm(".section .rodata\n"
    ".balign 16\n"
    "fovea_page_gz_begin:\n"
    ".incbin \"" FOVEA_PAGE_GZ
    "\"\n"
    "fovea_page_gz_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
extern const char fovea_page_gz_begin[];
extern const char fovea_page_gz_end[];
}

namespace fovea::server {

std::string_view page_gz() { return {fovea_page_gz_begin, static_cast<size_t>(fovea_page_gz_end - fovea_page_gz_begin)}; }

}  // namespace fovea::server
