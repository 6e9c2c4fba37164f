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

size_t operand_bytes(GemmCall::Operands operands) {
  return operands == GemmCall::Operands::fp8 ? 1 : operands == GemmCall::Operands::bf16 ? 2 : 4;
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
  return {c.operands, c.bias != nullptr, static_cast<uint8_t>(alignment(c.out)), c.rows, c.n, c.k, c.out_stride, c.scale_group};
}

void LibraryGemm::point(const Plan& plan, const GemmCall& call) const {
  const auto at = [&](cublasLtMatmulDescAttributes_t attribute, const float* p) {
    if (p) check(lt_->matmul_desc_set(plan.desc, attribute, &p, sizeof p), "cublasLtMatmulDescSetAttribute");
  };
  at(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  at(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.w_scales);
  at(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.x_scales);
}

// False if the library knows no such scales: it is older than 12.9, or this is built with an older toolkit.
bool LibraryGemm::set_scales(const Plan& plan, const GemmCall& call) const {
#if CUBLAS_VERSION >= 120900
  const bool by_row = call.scale_group == call.k;
  const int32_t w_mode = by_row ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  const int32_t x_mode = by_row ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, int32_t mode) {
    return lt_->matmul_desc_set(plan.desc, attribute, &mode, sizeof mode) == CUBLAS_STATUS_SUCCESS;
  };
  if (!set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w_mode) || !set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode)) return false;
  point(plan, call);
  return true;
#else
  (void)plan, (void)call;
  return false;
#endif
}

std::unique_ptr<LibraryGemm::Plan> LibraryGemm::make_plan(const GemmCall& call, const Key& key) {
  auto plan = std::make_unique<Plan>(*lt_);
  const bool fp8 = key.operands == GemmCall::Operands::fp8, bf16 = key.operands == GemmCall::Operands::bf16;
  const cublasComputeType_t compute = fp8 || bf16 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
  const cudaDataType_t operand = fp8 ? CUDA_R_8F_E4M3 : bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check(lt_->matmul_desc_set(plan->desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  check(lt_->matmul_desc_create(&plan->desc, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (fp8 && !set_scales(*plan, call)) return plan;
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

const LibraryGemm::Plan* LibraryGemm::plan_of(const GemmCall& call) {
  const size_t row_bytes = call.k * operand_bytes(call.operands);
  for (const void* p : {call.x, call.w, static_cast<const void*>(call.x_scales), static_cast<const void*>(call.w_scales)}) {
    if (p && alignment(p) < kOperandAlign) return nullptr;
  }
  if (row_bytes % kOperandAlign != 0) return nullptr;
  const Key key = key_of(call);
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    if (plans_.size() >= kPlansMax) plans_.clear();
    at = plans_.emplace(key, make_plan(call, key)).first;
  }
  return at->second->possible ? at->second.get() : nullptr;
}

bool LibraryGemm::has_way(const GemmCall& call) { return plan_of(call) != nullptr; }

bool LibraryGemm::run(const GemmCall& call, cudaStream_t stream) {
  const Plan* found = plan_of(call);
  if (!found) return false;
  const Plan& plan = *found;
  point(plan, call);
  const float one = 1.0f, zero = 0.0f;
  check(lt_->matmul(lt_->handle(), plan.desc, &one, call.w, plan.w, call.x, plan.x, &zero, call.out, plan.out, call.out, plan.out,
                    &plan.algo, workspace_.data(), workspace_.bytes(), stream),
        "cublasLtMatmul");
  return true;
}

}  // namespace fovea::cuda
