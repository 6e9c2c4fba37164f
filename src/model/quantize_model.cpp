#include <fovea/quantize.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "base/cores.h"
#include "base/thread_pool.h"
#include "kernels/common/dequantize.h"
#include "kernels/common/quantize.h"
#include "model/checkpoint.h"
#include "model/gguf.h"
#include "model/gguf_keys.h"
#include "model/json_reader.h"
#include "model/quantize_types.h"

namespace fovea {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;  // of a tensor, written at a time

// A file that appears under its name in commit(), or not at all.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".new-" + std::to_string(getpid())) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(temporary_.c_str());
  }

  Status open() {
    file_ = std::fopen(temporary_.c_str(), "wb");
    return file_ != nullptr ? Status() : failed();
  }
  Status write(const void* bytes, size_t count) {
    written_ += count;
    return std::fwrite(bytes, 1, count, file_) == count ? Status() : failed();
  }
  // Zeros up to `at`, bytes from the start.
  Status fill(uint64_t at) {
    const std::string zeros(at - written_, '\0');
    return write(zeros.data(), zeros.size());
  }
  Status commit() {
    if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) return failed();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return failed();
    std::fclose(file_);
    file_ = nullptr;
    return Status();
  }
  uint64_t written() const { return written_; }

 private:
  Status failed() const {
    const std::string what = path_ + ": " + std::strerror(errno);
    return errno == ENOSPC || errno == EDQUOT ? Status::resource_exhausted(what) : Status::io_error(what);
  }

  const std::string path_, temporary_;
  std::FILE* file_ = nullptr;
  uint64_t written_ = 0;
};

struct PlannedTensor {
  std::string name;  // in the file
  WeightView from;   // a vector is a column of f32
  WeightType type = WeightType::f32;
  bool is_vector = false;
  bool row_pairs = false;  // rows lie in the file in another order
  uint64_t begin = 0;      // from the end of the front
};

// What goes into the file.
class Plan {
 public:
  Plan(const GgufFileType& kind, const ModelConfig& config, std::string model)
      : kind_(kind), config_(config), model_(std::move(model)) {}

  Status add(const ListedWeight& w) {
    PlannedTensor t;
    t.name = gguf_name_of(w.name);
    t.row_pairs = gguf_row_pairs(arch_name(config_.arch), t.name);
    if (w.vector) return add_vector(std::move(t), *w.vector);
    t.from = *w.matrix;
    if (!is_plain(t.from.type)) {
      return Status::unsupported(model_ + ": tensor " + quote_name(w.name) + " is quantised already (" +
                                 std::string(weight_type_name(t.from.type)) + "; f32, f16 and bf16 can be quantised)");
    }
    const WeightType wanted = wanted_type(kind_, config_, w);
    t.type = type_for_rows(wanted, w.cols);
    if (t.type != wanted) ++replaced_[{wanted, t.type, w.cols}];
    return add(std::move(t));
  }

  Status add_vector(PlannedTensor t, WeightVector v) {
    t.from = weight_view(v.data(), DType::f32, static_cast<int64_t>(v.size()), 1);
    t.is_vector = true;
    return add(std::move(t));
  }

  void declare(GgufWriter* out) {
    for (PlannedTensor& t : tensors) {
      const int64_t shape[] = {t.from.rows, t.from.cols};
      t.begin = out->tensor(t.name, std::span(shape, t.is_vector ? 1 : 2), t.type);
    }
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> out;
    for (const auto& [key, count] : replaced_) {
      const auto& [wanted, type, cols] = key;
      out.push_back("rows of " + std::to_string(cols) + " are no whole blocks of " + std::string(weight_type_name(wanted)) + ": " +
                    std::string(weight_type_name(type)) + " instead, in " + std::to_string(count) + " of the matrices");
    }
    return out;
  }

  std::vector<PlannedTensor> tensors;
  int64_t parameters = 0;

 private:
  Status add(PlannedTensor t) {
    parameters += t.from.rows * t.from.cols;
    tensors.push_back(std::move(t));
    return Status();
  }

  const GgufFileType& kind_;
  const ModelConfig& config_;
  const std::string model_;
  std::map<std::tuple<WeightType, WeightType, int64_t>, int> replaced_;
};

// Converts tensors and writes them, some rows at a time.
class TensorWriter {
 public:
  TensorWriter(const QuantizeOptions& o, int64_t total, int head_dim, NewFile* file)
      : options_(o), total_(total), head_dim_(head_dim), file_(file), pool_(o.threads > 0 ? o.threads : usable_cores()) {
    floats_.resize(static_cast<size_t>(pool_.size()));
  }

  Status write(const PlannedTensor& t) {
    const WeightView out{.type = t.type, .rows = t.from.rows, .cols = t.from.cols};
    const auto row_bytes = static_cast<size_t>(out.row_bytes());
    const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes / row_bytes));
    for (std::vector<float>& f : floats_) f.resize(static_cast<size_t>(out.cols));
    for (int64_t first = 0; first < out.rows; first += step) {
      const int64_t rows = std::min(step, out.rows - first);
      bytes_.resize(static_cast<size_t>(rows) * row_bytes);
      std::atomic<bool> taken{true};
      pool_.parallel_for(rows, [&](int64_t row, int worker) {
        std::vector<float>& x = floats_[static_cast<size_t>(worker)];
        const int64_t from = t.row_pairs ? gguf_row_of_pairs(first + row, head_dim_) : first + row;
        dequantize_row(t.from, from, x.data());
        const bool fits = std::ranges::all_of(x, [&](float v) { return std::fabs(v) <= quantize_max(t.type); });
        if (!fits) taken = false;
        if (fits) quantize(t.type, x.data(), out.cols, bytes_.data() + static_cast<size_t>(row) * row_bytes);
      });
      if (!taken) {
        return Status::invalid_argument(options_.model + ": tensor " + quote_name(t.name) + " of the file has a weight that " +
                                        std::string(weight_type_name(t.type)) + " cannot hold: not finite, or too large");
      }
      FOVEA_TRY(file_->write(bytes_.data(), bytes_.size()));
      done_ += rows * out.cols;
      if (options_.progress) options_.progress(done_, total_);
    }
    return Status();
  }

 private:
  const QuantizeOptions& options_;
  const int64_t total_;
  const int head_dim_;
  NewFile* file_;
  ThreadPool pool_;
  std::vector<std::vector<float>> floats_;  // [workers] a row
  std::vector<uint8_t> bytes_;
  int64_t done_ = 0;
};

Result<const GgufFileType*> find_kind(const std::string& name) {
  std::string known;
  for (const GgufFileType& kind : kGgufFileTypes) {
    if (kind.name == name) return &kind;
    known += (known.empty() ? "" : " ") + std::string(kind.name);
  }
  return Status::invalid_argument("type " + quote_name(name) + " is not known (" + known + " are)");
}

Status check(const QuantizeOptions& o, const ModelConfig& config) {
  if (config.deepseek)
    return Status::unsupported(o.model + ": architecture " + config.architecture +
                               " cannot become a GGUF file (known: llama, qwen2, qwen3)");
  if (config.quantization) return Status::unsupported(o.model + ": its weights are quantised already (quantization_config)");
  return Status();
}

Status write_keys(const QuantizeOptions& o, const ModelConfig& config, GgufWriter* out) {
  if (!is_gguf(o.model)) return write_gguf_keys(o.model, config, out);
  FOVEA_ASSIGN(const auto source, GgufSource::open(o.model));
  copy_gguf_keys(source->header(), out);
  return Status();
}

}  // namespace

std::vector<std::string> quantize_types() {
  std::vector<std::string> out;
  for (const GgufFileType& kind : kGgufFileTypes) out.emplace_back(kind.name);
  return out;
}

Result<QuantizeResult> quantize_model(const QuantizeOptions& o) {
  FOVEA_ASSIGN(const GgufFileType* kind, find_kind(o.type));
  if (!o.overwrite && file_exists(o.out)) return Status::invalid_argument(o.out + ": it is there already (--force replaces it)");
  FOVEA_ASSIGN(const ModelConfig config, load_model_config(o.model));
  FOVEA_TRY(check(o, config));
  FOVEA_ASSIGN(const ModelWeights weights, load_checkpoint(o.model, config));
  Plan plan(*kind, config, o.model);
  FOVEA_TRY(for_each_weight(config, weights, [&](const ListedWeight& w) { return plan.add(w); }));
  const std::vector<float> divisors = gguf_rope_divisors(config);
  if (!divisors.empty()) FOVEA_TRY(plan.add_vector({.name = "rope_freqs.weight"}, divisors));

  GgufWriter front;
  FOVEA_TRY(write_keys(o, config, &front));
  front.u32("general.quantization_version", 2);  // of the layouts of blocks
  front.u32("general.file_type", kind->number);
  plan.declare(&front);

  NewFile file(o.out);
  FOVEA_TRY(file.open());
  const std::string begin = front.front();
  FOVEA_TRY(file.write(begin.data(), begin.size()));
  TensorWriter writer(o, plan.parameters, config.head_dim, &file);
  for (const PlannedTensor& t : plan.tensors) {
    FOVEA_TRY(file.fill(begin.size() + t.begin));
    FOVEA_TRY(writer.write(t));
  }
  FOVEA_TRY(file.fill(begin.size() + front.data_bytes()));
  FOVEA_TRY(file.commit());
  return QuantizeResult{plan.parameters, static_cast<int64_t>(file.written()), plan.notes()};
}

}  // namespace fovea
