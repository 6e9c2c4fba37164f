#include "kernels/cuda/linear/library_gemm.h"

#include <algorithm>

#include "base/check.h"

namespace fovea::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what the library's Hopper algorithms ask for at most
// Prefill chunks of ever new lengths would fill the host's memory with plans: beyond this many they start
// anew.
constexpr size_t kPlansMax = 4096;
constexpr uint32_t kOperandAlign = 16;  // bytes of every row of x and w: with less the library has slow ways or none

uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(address % 16 == 0 ? 16 : address & -address);
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "fovea: bug: %s: cuBLASLt status %d\n", what, static_cast<int>(status));
  std::abort();
}

}  // namespace

// The library's matrices are column-major: out^T [n, rows] = w [k, n]^T x [k, rows], as the bytes lie.
struct LibraryGemm::Plan {
  explicit Plan(const CublasLt& library) : lt(library) {}
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
      if (layout) lt.layout_destroy(layout);
    }
    if (desc) lt.matmul_desc_destroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const CublasLt& lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algo{};
  bool possible = false;
};

LibraryGemm::LibraryGemm() = default;
LibraryGemm::~LibraryGemm() = default;

Status LibraryGemm::prepare(Device& device) {
  plans_.clear();
  FOVEA_ASSIGN(lt_, CublasLt::open());
  FOVEA_ASSIGN(workspace_, device.allocate(kWorkspaceBytes, "cuBLASLt workspace"));
  return {};
}

LibraryGemm::Key LibraryGemm::key_of(const GemmCall& c) {
  return {c.operands, c.bias != nullptr, static_cast<uint8_t>(alignment(c.out)), c.rows, c.n, c.k, c.out_stride};
}

std::unique_ptr<LibraryGemm::Plan> LibraryGemm::make_plan(const Key& key) {
  auto plan = std::make_unique<Plan>(*lt_);
  const bool bf16 = key.operands == GemmCall::Operands::bf16;
  const cublasComputeType_t compute = bf16 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
  const cudaDataType_t operand = bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check(lt_->matmul_desc_set(plan->desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  check(lt_->matmul_desc_create(&plan->desc, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (key.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  const auto rows = static_cast<uint64_t>(key.rows), n = static_cast<uint64_t>(key.n), k = static_cast<uint64_t>(key.k);
  check(lt_->layout_create(&plan->w, operand, k, n, key.k), "cublasLtMatrixLayoutCreate");
  check(lt_->layout_create(&plan->x, operand, k, rows, key.k), "cublasLtMatrixLayoutCreate");
  check(lt_->layout_create(&plan->out, CUDA_R_32F, n, rows, key.out_stride), "cublasLtMatrixLayoutCreate");

  cublasLtMatmulPreference_t preference = nullptr;
  check(lt_->preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(lt_->preference_set(preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kOperandAlign);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kOperandAlign);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{key.out_align});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{key.out_align});
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t s =
      lt_->heuristic(lt_->handle(), plan->desc, plan->w, plan->x, plan->out, plan->out, preference, 1, &found, &count);
  lt_->preference_destroy(preference);
  plan->possible = s == CUBLAS_STATUS_SUCCESS && count > 0;
  plan->algo = found.algo;
  return plan;
}

bool LibraryGemm::run(const GemmCall& call, cudaStream_t stream) {
  const size_t row_bytes = call.k * (call.operands == GemmCall::Operands::bf16 ? sizeof(uint16_t) : sizeof(float));
  if (alignment(call.x) < kOperandAlign || alignment(call.w) < kOperandAlign || row_bytes % kOperandAlign != 0) return false;
  const Key key = key_of(call);
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    if (plans_.size() >= kPlansMax) plans_.clear();
    at = plans_.emplace(key, make_plan(key)).first;
  }
  const Plan& plan = *at->second;
  if (!plan.possible) return false;
  if (call.bias) {
    check(lt_->matmul_desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias, sizeof call.bias),
          "cublasLtMatmulDescSetAttribute");
  }
  const float one = 1.0f, zero = 0.0f;
  check(lt_->matmul(lt_->handle(), plan.desc, &one, call.w, plan.w, call.x, plan.x, &zero, call.out, plan.out, call.out, plan.out,
                    &plan.algo, workspace_.data(), workspace_.bytes(), stream),
        "cublasLtMatmul");
  return true;
}

}  // namespace fovea::cuda
