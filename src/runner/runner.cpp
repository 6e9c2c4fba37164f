// Making a runner; runner_cache.cpp: its KV cache; runner_step.cpp: its steps.
#include "runner/runner.h"

#include "base/available_memory.h"
#include "base/check.h"
#include "kernels/common/dequantize.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ref/ref_ops.h"
#include "model/attend.h"
#include "runner/device_choice.h"
#include "sparse/registry.h"

#include <algorithm>
#include <string_view>

namespace fovea {
namespace {

constexpr size_t kMethodsMax = kGroupsMax / 2 - 1;  // each with prefill and decode rows, and the dense ones

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(EngineOptions& options, const ModelConfig& config, const ModelShape& shape,
                                               ModelWeights& weights, RunnerParts parts) {
  std::unique_ptr<Runner> runner(new Runner(options, config, shape, std::move(parts)));
  FOVEA_TRY(runner->init(weights));
  return runner;
}

Status Runner::init(ModelWeights& weights) {
  FOVEA_TRY(make_device());
  if (options_.max_num_batched_tokens == 0) options_.max_num_batched_tokens = device_->is_host() ? 512 : 2048;
  options_.max_num_seqs = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  FOVEA_TRY(make_ops());
  FOVEA_TRY(check_weights(weights));
  FOVEA_TRY(place(weights));
  kv_scales_ = weights.kv_scales;
  FOVEA_TRY(make_transformer());
  staging_ = std::make_unique<StepMemory>(*device_);
  FOVEA_TRY(make_methods());
  // It may lower what a step takes: so where contexts may be larger than the pool, before the arrays of a step are made.
  const bool may_offload = options_.kv_host_memory_bytes > 0 || options_.kv_offload == OffloadChoice::on;
  if (device_->is_host() || may_offload) FOVEA_TRY(plan_memory());
  FOVEA_TRY(prepare_ops(weights));
  FOVEA_TRY(make_step_buffers());
  return make_cache();  // last: it takes what the others leave
}

// A copy serves instead of the file, which need not stay mapped.
Status Runner::place(ModelWeights& weights) {
  if (!device_->is_host()) {
    FOVEA_ASSIGN(weights_, copy_weights(weights, config_, wanted_numerics(), *device_, *stream_));
  } else {
    const bool gathered = options_.dummy_weights && is_plain(options_.dummy_weight_type);  // in huge pages, as they should lie
    if (cpu_ops_ && !gathered && matrix_bytes(config_, weights) <= memory_for_weights())
      weights_ = gather_weights(weights, config_, *pool_);
  }
  if (weights_) {
    weights.owner.reset();
  } else {
    weights_ = place_weights(weights, config_);
  }
  return {};
}

// Three quarters of what there is: a copy, unlike pages of a file, cannot be dropped.
int64_t Runner::memory_for_weights() const { return (available_memory() - options_.kv_cache_memory_bytes) / 4 * 3; }

Status Runner::make_device() {
  device_ = std::move(parts_.device);
  if (!device_ && options_.device != "cpu" && !options_.use_reference_ops) {
    Result<std::unique_ptr<Device>> cuda = make_cuda_device();
    const std::string lacking = options_.device == "auto" && cuda.ok() ? lacks(cuda_op_set(), config_, options_) : "";
    if (!lacking.empty()) {
      device_note_ = " (--device auto: the GPU has no " + lacking + ")";
    } else if (cuda.ok()) {
      device_ = std::move(cuda).value();
    } else if (options_.device == "cuda") {
      return cuda.status();
    }
  }
  if (!device_) device_ = make_cpu_device();
  stream_ = device_->make_stream();
  return {};
}

Status Runner::make_transformer() {
  const ModelConfig& c = config_;
  if (!c.deepseek) {
    transformer_ = make_llama(c, *weights_);
    return {};
  }
  ForwardLimits limits{max_rows(), options_.max_num_seqs, options_.max_model_len, ops_->supported()};
  for (const MethodOptions& m : options_.methods) {
    if (m.name != "dsa") continue;
    const int64_t chunk = m.dsa.prefix_chunk_capacity;
    if (chunk < 1) return Status::invalid_argument("dsa: prefix_chunk_capacity " + std::to_string(chunk) + " is below 1");
    limits.prefix_chunk = limits.prefix_chunk > 0 ? std::min(limits.prefix_chunk, chunk) : chunk;
  }
  FOVEA_ASSIGN(transformer_, make_deepseek_v32(c, *weights_, limits, *device_));
  return {};
}

// Padding to the sizes that graphs are kept for at most doubles a decode step (Batch::padded_rows).
int32_t Runner::max_rows() const {
  return device_->is_host() ? options_.max_num_batched_tokens
                            : std::max(options_.max_num_batched_tokens, 2 * options_.max_num_seqs);
}

int32_t Runner::max_logits() const { return device_->is_host() ? options_.max_num_seqs : 2 * options_.max_num_seqs; }

Status Runner::add_method(const MethodOptions& o) {
  const std::string label = o.label.empty() ? o.name : o.label;
  if (method_index(label) >= 0) {
    return label == "dense" && o.name == "dense" ? Status() : Status::invalid_argument("method " + label + " is given twice");
  }
  FOVEA_ASSIGN(auto method, parts_.make_method ? parts_.make_method(o) : make_method(o));
  if (method && shape_.kv_lora_rank > 0 && !method->reads_latents())
    return Status::unsupported(label + ": " + config_.architecture + " caches latents, which only dense and dsa read");
  if (method) {
    if (!device_->is_host() && o.gsa.scoring == GsaScoring::host && !host_ops_) {
      pool_ = std::make_unique<ThreadPool>(options_.threads);
      host_ops_ = make_cpu_ops(*pool_, Numerics::f32);
    }
    const MethodLimits limits = {max_rows(), options_.max_model_len, ops_->supported(), device_->is_host(), host_ops_.get()};
    if (Status s = method->attach(shape_, limits, *device_, *staging_); !s.ok()) return label == o.name ? s : s.with_context(label);
    const int32_t tile = method->prefill_alignment();
    if (tile > 1 && tile % options_.block_size != 0)
      return Status::invalid_argument(label + ": its tiles of " + std::to_string(tile) +
                                      " tokens are no multiple of --block-size " + std::to_string(options_.block_size));
    if (tile > options_.max_num_batched_tokens)
      return Status::invalid_argument(label + ": its tiles of " + std::to_string(tile) +
                                      " tokens do not fit --max-num-batched-tokens " +
                                      std::to_string(options_.max_num_batched_tokens));
  }
  auto policy = LayerPolicy::make(config_.num_layers, method ? method->dense_layers() : std::vector<int32_t>(),
                                  method ? method->reuse_layers() : std::vector<int32_t>());
  if (!policy.ok()) return policy.status().with_context(label);
  methods_.push_back({label, std::move(method), std::move(policy).value(), {}});
  return {};
}

// A default may name a configuration that is held, or a method, which is then held with its own defaults.
Status Runner::resolve_default(const char* flag, std::string* label) {
  const bool prefill = std::string_view(flag) == "--prefill-method";
  if (*label == "auto") *label = shape_.index_topk > 0 ? "dsa" : "dense";
  if (method_index(*label) < 0) {
    Result<MethodOptions> spec = parse_method_spec(*label);
    if (!spec.ok()) return spec.status().with_context(flag);
    FOVEA_TRY(add_method(*spec));
  }
  const Method* m = methods_[static_cast<size_t>(method_index(*label))].method.get();
  if (m && !(prefill ? m->prefills() : m->decodes()))
    return Status::invalid_argument(std::string(flag) + " " + *label + ": it serves " +
                                    (prefill ? "questions and answers, not prompts" : "prompts, not questions and answers"));
  return {};
}

Status Runner::make_methods() {
  FOVEA_TRY(add_method(MethodOptions{}));
  for (const MethodOptions& o : options_.methods) FOVEA_TRY(add_method(o));
  FOVEA_TRY(resolve_default("--decode-method", &options_.decode_method));
  FOVEA_TRY(resolve_default("--prefill-method", &options_.prefill_method));
  if (methods_.size() > kMethodsMax)
    return Status::invalid_argument("methods: " + std::to_string(methods_.size()) + " configurations, an engine holds " +
                                    std::to_string(kMethodsMax) + " at most");
  return {};
}

int32_t Runner::method_index(const std::string& label) const {
  for (size_t i = 0; i < methods_.size(); ++i) {
    if (methods_[i].label == label) return static_cast<int32_t>(i);
  }
  return -1;
}

Numerics Runner::wanted_numerics() const {
  if (options_.use_reference_ops) return Numerics::f32;
  switch (options_.numerics) {
    case NumericsChoice::f32:
      return Numerics::f32;
    case NumericsChoice::bf16:
    case NumericsChoice::fp8:
      return Numerics::bf16;
    case NumericsChoice::automatic:
    case NumericsChoice::int8:
      return device_->is_host() ? preferred_numerics() : Numerics::bf16;
  }
  return Numerics::f32;
}

cpu::Int8Rows Runner::int8_rows() const {
  switch (options_.numerics) {
    case NumericsChoice::f32:
      return cpu::Int8Rows::none;
    case NumericsChoice::int8:
      return cpu::Int8Rows::all;
    default:
      return cpu::Int8Rows::few;
  }
}

std::string Runner::numerics_name() const {
  const bool int8 = options_.numerics == NumericsChoice::int8, fp8 = options_.numerics == NumericsChoice::fp8;
  return std::string(int8 ? "int8 " : fp8 ? "fp8 " : "") + (ops_->numerics() == Numerics::bf16 ? "bf16" : "f32");
}

Status Runner::make_ops() {
  if (options_.numerics == NumericsChoice::int8 && !device_->is_host())
    return Status::unsupported("--numerics int8 on " + device_->description());
  if (options_.numerics == NumericsChoice::fp8 && device_->is_host())
    return Status::unsupported("--numerics fp8 on " + device_->description() + ": it takes an NVIDIA GPU, --device cuda");
  if (parts_.make_ops) {
    ops_ = parts_.make_ops(*device_);
  } else if (options_.use_reference_ops) {
    ops_ = make_ref_ops();
  } else if (!device_->is_host()) {
    FOVEA_ASSIGN(ops_, make_cuda_ops(*device_, wanted_numerics(), options_.numerics == NumericsChoice::fp8));
  } else {
    pool_ = std::make_unique<ThreadPool>(options_.threads);
    auto cpu = make_cpu_ops(*pool_, wanted_numerics(), int8_rows());
    cpu_ops_ = cpu.get();
    ops_ = std::move(cpu);
  }
  return {};
}

// Whether the operations that read each matrix take its type.
Status Runner::check_weights(const ModelWeights& weights) const {
  return for_each_weight(config_, weights, [&](const ListedWeight& w) -> Status {
    if (!w.matrix) return {};
    if (must_be_plain(w.role) ? !is_plain(w.matrix->type) : !ops_->takes(w.matrix->type))
      return Status::unsupported(w.name + ": weights of type " + std::string(weight_type_name(w.matrix->type)) + " on " +
                                 std::string(ops_->name()));
    return check_weight(*w.matrix).with_context(w.name);
  });
}

Status Runner::prepare_ops(const ModelWeights& weights) {
  const ModelConfig& c = config_;
  OpsLimits limits;
  limits.max_rows = max_rows();
  limits.max_decode_rows = max_rows();
  limits.max_sample_rows = max_logits() + kAnswersMax;
  limits.vocab = c.vocab_size;
  limits.max_len = options_.max_model_len;
  limits.num_heads = c.num_heads;
  limits.kv_heads = c.num_kv_heads;
  if (!c.deepseek) limits.head_dim = c.head_dim;
  limits.block_size = options_.block_size;
  const std::vector<WeightView> products = linear_matrices(c, weights);
  for (const WeightView& w : products) {
    limits.max_k = std::max(limits.max_k, static_cast<int32_t>(w.cols));
    limits.max_n = std::max(limits.max_n, static_cast<int32_t>(w.rows));
  }
  if (const auto& d = c.deepseek) {
    limits.mla = {d->kv_lora_rank, d->rope_dim, d->nope_dim, d->v_dim};
    limits.moe = {d->experts, d->experts_per_token, c.hidden_size, d->moe_intermediate};
    limits.index_heads = d->index_heads;
    limits.index_dim = d->index_dim;
    limits.index_topk = d->index_topk;
  }
  for (const MethodEntry& e : methods_) {
    if (e.method) e.method->raise_limits(&limits);
  }
  FOVEA_TRY(ops_->prepare(limits));
  if (host_ops_) {
    OpsLimits choices = limits;
    choices.max_k = choices.max_n = 1;  // it chooses alone
    FOVEA_TRY(host_ops_->prepare(choices));
  }
  if (!cpu_ops_) return {};
  for (const WeightView& w : products)
    FOVEA_TRY(cpu_ops_->add_linear_shape(static_cast<int32_t>(w.cols), static_cast<int32_t>(w.rows), w.type));
  return {};
}

Status Runner::make_step_buffers() {
  const int64_t vocab = config_.vocab_size;
  const int64_t max_blocks = (options_.max_model_len + options_.block_size - 1) / options_.block_size;
  batch_ = std::make_unique<Batch>(BatchLimits{options_.max_num_batched_tokens, options_.max_num_seqs, max_blocks,
                                               options_.block_size, plan_.own_columns, !device_->is_host()},
                                   methods_, *device_, *staging_);
  const int32_t max_samples = max_logits() + kAnswersMax;  // the answers of one prompt begin in one step
  samples_ = std::make_unique<SampleBatch>(max_samples, static_cast<int32_t>(vocab), *device_, *staging_);
  if (plan_.own_columns && !device_->is_host()) wave_base_ = staging_->take<uint32_t>(1);
  if (!device_->is_host()) keys_read_ = staging_->take_rows<int64_t>(max_rows());
  if (!device_->is_host() && plan_.own_columns) fetched_ = staging_->take_rows<int64_t>(2 * int64_t{max_rows()}, 2);
  FOVEA_TRY(staging_->commit());
  FOVEA_TRY(batch_->init());
  FOVEA_TRY(samples_->init());
  counter_ = std::make_unique<ReadCounter>(shape_, *batch_, *device_, *ops_, *stream_);
  FOVEA_ASSIGN(logits_, device_->allocate(sizeof(float) * static_cast<size_t>(max_logits() * vocab), "logits"));
  const size_t workspace = transformer_->workspace_bytes(max_rows(), max_logits());
  if (device_->is_host()) {
    arena_ = std::make_unique<Arena>(workspace);
    return {};
  }
  FOVEA_ASSIGN(arena_memory_, device_->allocate(workspace, "activations"));
  arena_ = std::make_unique<Arena>(arena_memory_.data(), workspace);
  const size_t counts = sizeof(int64_t) * static_cast<size_t>(max_rows());
  for (Flight& f : flights_) {
    FOVEA_ASSIGN(f.tokens, device_->allocate_pinned(sizeof(int32_t) * static_cast<size_t>(max_samples), "sampled tokens"));
    FOVEA_ASSIGN(f.keys_read, device_->allocate_pinned(counts, "read counts"));
    f.done = device_->make_event();
    if (!plan_.own_columns) continue;
    FOVEA_ASSIGN(f.fetched, device_->allocate_pinned(2 * counts, "read counts"));
  }
  return {};
}

std::unique_ptr<ColumnIo> Runner::make_column_io() {
  return std::make_unique<ColumnIo>(*kv_, summaries_, options_.max_num_batched_tokens, *device_, *stream_, *ops_);
}

std::string Runner::description() const {
  const std::string name = std::string(ops_->name()) + " " + numerics_name();
  std::string offload = plan_.note.empty() ? "" : " (" + plan_.note + ")";
  if (plan_.own_columns) {
    const std::string staging = std::to_string(plan_.staging_columns) + " of them staging while a prompt is read";
    offload = ", KV pool of " + std::to_string(plan_.pool_columns()) + " blocks" +
              (plan_.staging_columns > 0 ? " (" + staging + ")" : "") + ": chunks of " +
              std::to_string(plan_.max_num_batched_tokens) + " tokens, " + std::to_string(plan_.max_num_seqs) +
              " sequences at a time";
    if (plan_.window_extents > 0) offload += "; --kv-host-memory holds a part of them: steps wait for what they miss";
  }
  if (!device_->is_host()) return name + ", " + device_->description() + offload;
  return name + ", " + std::to_string(options_.threads) + (options_.threads == 1 ? " thread" : " threads") + offload + device_note_;
}

}  // namespace fovea
