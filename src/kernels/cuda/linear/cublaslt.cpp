#include "kernels/cuda/linear/cublaslt.h"

#include <dlfcn.h>

namespace fovea::cuda {
namespace {

constexpr const char* kLibraries[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

template <typename F>
bool find(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

}  // namespace

Result<std::unique_ptr<CublasLt>> CublasLt::open() {
  std::unique_ptr<CublasLt> out(new CublasLt);
  for (const char* library : kLibraries) {
    out->library_ = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!out->library_) continue;
    FOVEA_TRY(out->bind(library));
    return out;
  }
  return Status::unsupported(std::string("device cuda: bf16 numerics need cuBLASLt, and neither ") + kLibraries[0] + " nor " +
                             kLibraries[1] + " was found: install NVIDIA's CUDA toolkit or `pip install " +
                             "nvidia-cublas`, and put the library's folder into LD_LIBRARY_PATH");
}

Status CublasLt::bind(const char* library) {
  const bool complete = find(library_, "cublasLtCreate", &create) && find(library_, "cublasLtDestroy", &destroy) &&
                        find(library_, "cublasLtMatmulDescCreate", &matmul_desc_create) &&
                        find(library_, "cublasLtMatmulDescDestroy", &matmul_desc_destroy) &&
                        find(library_, "cublasLtMatmulDescSetAttribute", &matmul_desc_set) &&
                        find(library_, "cublasLtMatrixLayoutCreate", &layout_create) &&
                        find(library_, "cublasLtMatrixLayoutDestroy", &layout_destroy) &&
                        find(library_, "cublasLtMatmulPreferenceCreate", &preference_create) &&
                        find(library_, "cublasLtMatmulPreferenceDestroy", &preference_destroy) &&
                        find(library_, "cublasLtMatmulPreferenceSetAttribute", &preference_set) &&
                        find(library_, "cublasLtMatmulAlgoGetHeuristic", &heuristic) && find(library_, "cublasLtMatmul", &matmul);
  if (!complete) return Status::unsupported(std::string("device cuda: ") + library + " lacks functions of cuBLASLt");
  if (const cublasStatus_t s = create(&handle_); s != CUBLAS_STATUS_SUCCESS) {
    return Status::internal(std::string("device cuda: ") + library + ": cublasLtCreate failed with status " +
                            std::to_string(static_cast<int>(s)));
  }
  return {};
}

// The library stays open: what it has registered with the CUDA runtime cannot be taken back.
CublasLt::~CublasLt() {
  if (handle_) destroy(handle_);
}

}  // namespace fovea::cuda
