// cuBLASLt, opened at run time: the program starts without it, and f32 numerics never need it.
#pragma once

#include <fovea/status.h>

#include <cublasLt.h>

#include <memory>
#include <string>

namespace fovea::cuda {

// The library's functions by their names without the prefix, and its handle.
class CublasLt {
 public:
  // Errors: unsupported, naming the library and how to get it.
  static Result<std::unique_ptr<CublasLt>> open();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

 private:
  CublasLt() = default;
  Status bind(const char* library);

  void* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace fovea::cuda
