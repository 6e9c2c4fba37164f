#include "engine/engine_impl.h"

#include "base/check.h"
#include "base/cores.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ref/ref_ops.h"
#include "model/attend.h"
#include "model/cache_key.h"
#include "sparse/registry.h"

#include <algorithm>
#include <ctime>

namespace fovea {
namespace {

constexpr size_t kInboxMax = 4096;      // requests waiting to be taken over by step()
constexpr int32_t kAnswersMax = 256;  // of a request (check_sampling)
constexpr size_t kMethodsMax = kGroupsMax / 2 - 1;  // each with prefill and decode rows, and the dense ones

// The fused cache write keeps the codes of one codec; where it is the only one that makes codes, no other may be asked for.
Status check_codecs(const std::vector<MethodEntry>& methods) {
  const MethodEntry* first = nullptr;
  CodesView view;
  for (const MethodEntry& e : methods) {
    if (!e.method || !e.method->codes_view(nullptr, &view)) continue;
    if (first && e.method->planes()[0].name != first->method->planes()[0].name)
      return Status::unsupported(e.label + ": its hash codes differ from those of " + first->label + "; a GPU keeps one kind");
    if (!first) first = &e;
  }
  return {};
}

// Methods that name the same plane share it.
Status add_plane(PlaneSpec plane, const std::string& method, std::vector<PlaneSpec>* planes) {
  const auto same = std::find_if(planes->begin(), planes->end(), [&](const PlaneSpec& p) { return p.name == plane.name; });
  if (same == planes->end()) {
    planes->push_back(std::move(plane));
    return {};
  }
  if (*same == plane) return {};
  return Status::internal("method " + method + ": its plane " + plane.name + " differs from that of another method");
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::aborted: return "aborted";
    case FinishReason::failed: return "failed";
  }
  return "?";
}

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  auto engine = std::make_unique<EngineImpl>(std::move(options));
  FOVEA_TRY(engine->init());
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::~EngineImpl() = default;

Status EngineImpl::init() {
  FOVEA_TRY(check_options(options_));
  if (options_.threads == 0) options_.threads = usable_cores();
  FOVEA_ASSIGN(model_, load_model(options_));
  const ModelConfig& c = model_->config;
  FOVEA_TRY(make_device());
  if (options_.max_num_batched_tokens == 0) options_.max_num_batched_tokens = device_->is_host() ? 512 : 2048;
  if (options_.max_model_len == 0) options_.max_model_len = c.max_position_embeddings;
  options_.max_num_seqs = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  info_ = describe(*model_, options_);

  FOVEA_ASSIGN(weights_, place_weights(model_->weights, c, *device_, *stream_));
  if (!device_->is_host()) model_->weights.owner.reset();  // the copy serves; the file need not stay mapped
  FOVEA_TRY(make_ops());
  FOVEA_TRY(make_transformer());
  staging_ = std::make_unique<StepMemory>(*device_);
  FOVEA_TRY(make_methods());
  FOVEA_TRY(prepare_ops());
  FOVEA_TRY(make_step_buffers());
  return make_cache();  // last: it takes what the others leave
}

Status EngineImpl::make_device() {
  device_ = std::move(parts_.device);
  const bool host_only = model_->config.deepseek.has_value() && options_.device == "auto";
  if (!device_ && options_.device != "cpu" && !options_.use_reference_ops && !host_only) {
    Result<std::unique_ptr<Device>> cuda = make_cuda_device();
    if (cuda.ok()) {
      device_ = std::move(cuda).value();
    } else if (options_.device == "cuda") {
      return cuda.status();
    }
  }
  if (!device_) device_ = make_cpu_device();
  stream_ = device_->make_stream();
  return {};
}

Status EngineImpl::make_transformer() {
  const ModelConfig& c = model_->config;
  if (!c.deepseek) {
    transformer_ = make_llama(c, *weights_);
    return {};
  }
  const ForwardLimits limits{max_rows(), options_.max_num_seqs, options_.max_model_len, ops_->supported()};
  FOVEA_ASSIGN(transformer_, make_deepseek_v32(c, *weights_, limits, *device_));
  return {};
}

// Padding to the sizes that graphs are kept for at most doubles a decode step (Batch::padded_rows).
int32_t EngineImpl::max_rows() const {
  return device_->is_host() ? options_.max_num_batched_tokens : std::max(options_.max_num_batched_tokens, 2 * options_.max_num_seqs);
}

int32_t EngineImpl::max_logits() const { return device_->is_host() ? options_.max_num_seqs : 2 * options_.max_num_seqs; }

Status EngineImpl::add_method(const MethodOptions& o) {
  const std::string label = o.label.empty() ? o.name : o.label;
  if (method_index(label) >= 0) {
    return label == "dense" && o.name == "dense" ? Status() : Status::invalid_argument("method " + label + " is given twice");
  }
  FOVEA_ASSIGN(auto method, parts_.make_method ? parts_.make_method(o) : make_method(o));
  if (method && info_.shape.kv_lora_rank > 0 && !method->reads_latents())
    return Status::unsupported(label + ": " + info_.architecture + " caches latents, which only dense and dsa read");
  if (method) {
    if (Status s = method->attach(info_.shape, {max_rows(), options_.max_model_len, ops_->supported()}, *device_, *staging_); !s.ok())
      return label == o.name ? s : s.with_context(label);
    const int32_t tile = method->prefill_alignment();
    if (tile > 1 && tile % options_.block_size != 0)
      return Status::invalid_argument(label + ": its tiles of " + std::to_string(tile) + " tokens are no multiple of --block-size " +
                                      std::to_string(options_.block_size));
    if (tile > options_.max_num_batched_tokens)
      return Status::invalid_argument(label + ": its tiles of " + std::to_string(tile) + " tokens do not fit --max-num-batched-tokens " +
                                      std::to_string(options_.max_num_batched_tokens));
  }
  auto policy = LayerPolicy::make(model_->config.num_layers, method ? method->dense_layers() : std::vector<int32_t>(),
                                  method ? method->reuse_layers() : std::vector<int32_t>());
  if (!policy.ok()) return policy.status().with_context(label);
  methods_.push_back({label, std::move(method), std::move(policy).value(), {}});
  return {};
}

// A default may name a configuration that is held, or a method, which is then held with its own defaults.
Status EngineImpl::resolve_default(const char* flag, std::string* label) {
  const bool prefill = std::string_view(flag) == "--prefill-method";
  if (*label == "auto") *label = info_.shape.index_topk > 0 ? "dsa" : "dense";
  if (method_index(*label) < 0) {
    Result<MethodOptions> spec = parse_method_spec(*label);
    if (!spec.ok()) return spec.status().with_context(flag);
    FOVEA_TRY(add_method(*spec));
  }
  const Method* m = methods_[static_cast<size_t>(method_index(*label))].method.get();
  if (m && !(prefill ? m->prefills() : m->decodes()))
    return Status::invalid_argument(std::string(flag) + " " + *label + ": it serves " + (prefill ? "questions and answers, not prompts" : "prompts, not questions and answers"));
  return {};
}

Status EngineImpl::make_methods() {
  FOVEA_TRY(add_method(MethodOptions{}));
  for (const MethodOptions& o : options_.methods) FOVEA_TRY(add_method(o));
  FOVEA_TRY(resolve_default("--decode-method", &options_.decode_method));
  FOVEA_TRY(resolve_default("--prefill-method", &options_.prefill_method));
  if (methods_.size() > kMethodsMax)
    return Status::invalid_argument("methods: " + std::to_string(methods_.size()) + " configurations, an engine holds " +
                                    std::to_string(kMethodsMax) + " at most");
  return {};
}

int32_t EngineImpl::method_index(const std::string& label) const {
  for (size_t i = 0; i < methods_.size(); ++i) {
    if (methods_[i].label == label) return static_cast<int32_t>(i);
  }
  return -1;
}

// Blocks of one lineage are never found by another. Methods that leave the same in the cache share a lineage.
BlockHasher* EngineImpl::hasher_of(int32_t prefill_method) {
  if (!options_.enable_prefix_caching) return nullptr;
  const Method* m = methods_[static_cast<size_t>(prefill_method)].method.get();
  const std::string lineage = (m ? m->lineage() : "dense") + (numerics() == Numerics::bf16 ? " bf16" : " f32");
  std::unique_ptr<BlockHasher>& hasher = hashers_[lineage];
  if (hasher) return hasher.get();
  KeyContext key = key_context(model_->config);
  key.model_digest = model_->model_digest;
  key.tokenizer_digest = model_->tokenizer_digest;
  key.kv_dtype = options_.kv_cache_dtype;
  key.block_size = options_.block_size;
  key.tenant_salt = options_.tenant_salt;
  key.lineage = lineage;
  hasher = std::make_unique<BlockHasher>(key);
  return hasher.get();
}

Status EngineImpl::make_cache() {
  KvCacheConfig k;
  k.num_layers = info_.shape.num_layers;
  k.block_size = options_.block_size;
  k.kv_heads = info_.shape.kv_heads;
  k.head_dim = info_.shape.head_dim;
  k.dtype = options_.kv_cache_dtype;
  k.device = device_.get();
  k.latent = info_.shape.kv_lora_rank > 0;
  if (!device_->is_host()) FOVEA_TRY(check_codecs(methods_));
  for (const MethodEntry& e : methods_) {
    if (!e.method) continue;
    for (PlaneSpec& p : e.method->planes()) FOVEA_TRY(add_plane(std::move(p), e.label, &k.extra_planes));
  }
  const int64_t block_bytes = column_bytes(k);
  const int64_t blocks_per_seq = (options_.max_model_len + k.block_size - 1) / k.block_size;
  const int64_t wanted = blocks_per_seq * options_.max_num_seqs;
  // On a GPU memory is taken at once, and nothing but this cache is still to come: nine tenths of what is left.
  const int64_t bytes = options_.kv_cache_memory_bytes ? options_.kv_cache_memory_bytes
                        : device_->is_host()           ? available_memory() * 6 / 10
                                                       : device_->free_bytes() / 10 * 9;
  const int64_t blocks = std::min(wanted, bytes / block_bytes);
  if (blocks < 1)
    return Status::resource_exhausted("--kv-cache-memory " + std::to_string(bytes) + ": one block of " +
                                      std::to_string(k.block_size) + " tokens needs " + std::to_string(block_bytes) + " bytes");
  k.num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX / 2));
  // Large pages for large caches only: memory is then taken 2 MiB at a time per plane and layer.
  k.huge_pages = blocks * block_bytes >= (int64_t{1} << 30);
  FOVEA_ASSIGN(kv_, KvCache::create(k));
  FOVEA_ASSIGN(swap_, SwapArea::create(*kv_, options_.swap_space_bytes));

  for (MethodEntry& e : methods_) {
    if (!e.method) continue;
    for (const PlaneSpec& p : e.method->planes()) e.planes.push_back(*kv_->find_plane(p.name));
    summaries_.add(e.method.get(), e.planes);
  }
  blocks_ = std::make_unique<BlockManager>(BlockManagerConfig{k.num_blocks, k.block_size, swap_->num_slots()});
  SchedulerConfig s;
  s.max_num_batched_tokens = options_.max_num_batched_tokens;
  s.max_num_seqs = options_.max_num_seqs;
  s.sparse_extend_max_tokens = options_.sparse_extend_max_tokens;
  s.max_step_kv_blocks = options_.max_step_kv_blocks;
  scheduler_ = std::make_unique<Scheduler>(s, *blocks_);
  return {};
}

Numerics EngineImpl::numerics() const {
  if (options_.use_reference_ops) return Numerics::f32;
  switch (options_.numerics) {
    case NumericsChoice::f32: return Numerics::f32;
    case NumericsChoice::bf16: return Numerics::bf16;
    case NumericsChoice::automatic: return device_->is_host() ? preferred_numerics() : Numerics::bf16;
  }
  return Numerics::f32;
}

Status EngineImpl::make_ops() {
  if (parts_.make_ops) {
    ops_ = parts_.make_ops(*device_);
  } else if (options_.use_reference_ops) {
    ops_ = make_ref_ops();
  } else if (!device_->is_host()) {
    FOVEA_ASSIGN(ops_, make_cuda_ops(*device_, numerics()));
  } else {
    pool_ = std::make_unique<ThreadPool>(options_.threads);
    auto cpu = make_cpu_ops(*pool_, numerics());
    cpu_ops_ = cpu.get();
    ops_ = std::move(cpu);
  }
  return {};
}

Status EngineImpl::prepare_ops() {
  const ModelConfig& c = model_->config;
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
  const std::vector<WeightMatrix> products = linear_matrices(c, model_->weights);
  for (const WeightMatrix& w : products) {
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
  if (!cpu_ops_) return {};
  for (const WeightMatrix& w : products)
    FOVEA_TRY(cpu_ops_->add_linear_shape(static_cast<int32_t>(w.cols), static_cast<int32_t>(w.rows), w.dtype));
  return {};
}

Status EngineImpl::make_step_buffers() {
  const int64_t vocab = model_->config.vocab_size;
  const int64_t max_blocks = (options_.max_model_len + options_.block_size - 1) / options_.block_size;
  batch_ = std::make_unique<Batch>(
      BatchLimits{options_.max_num_batched_tokens, options_.max_num_seqs, max_blocks, options_.block_size, !device_->is_host()},
      methods_, *device_, *staging_);
  const int32_t max_samples = max_logits() + kAnswersMax;  // the answers of one prompt begin in one step
  samples_ = std::make_unique<SampleBatch>(max_samples, static_cast<int32_t>(vocab), *device_, *staging_);
  FOVEA_TRY(staging_->commit());
  FOVEA_TRY(batch_->init());
  FOVEA_TRY(samples_->init());
  counter_ = std::make_unique<ReadCounter>(info_.shape, *batch_, *device_, *ops_, *stream_);
  FOVEA_ASSIGN(logits_, device_->allocate(sizeof(float) * static_cast<size_t>(max_logits() * vocab), "logits"));
  const size_t workspace = transformer_->workspace_bytes(max_rows(), max_logits());
  sampled_.reserve(static_cast<size_t>(max_samples));
  if (device_->is_host()) {
    arena_ = std::make_unique<Arena>(workspace);
    return {};
  }
  FOVEA_ASSIGN(arena_memory_, device_->allocate(workspace, "activations"));
  arena_ = std::make_unique<Arena>(arena_memory_.data(), workspace);
  FOVEA_ASSIGN(keys_read_, device_->allocate(sizeof(int64_t) * static_cast<size_t>(max_rows()), "read counts"));
  for (Flight& f : flights_) {
    FOVEA_ASSIGN(f.tokens, device_->allocate_pinned(sizeof(int32_t) * static_cast<size_t>(max_samples), "sampled tokens"));
    FOVEA_ASSIGN(f.keys_read, device_->allocate_pinned(sizeof(int64_t) * static_cast<size_t>(max_rows()), "read counts"));
    f.done = device_->make_event();
  }
  return {};
}

std::string EngineImpl::backend() const {
  const std::string name = std::string(ops_->name()) + (ops_->numerics() == Numerics::bf16 ? " bf16" : " f32");
  if (!device_->is_host()) return name + ", " + device_->description();
  return name + ", " + std::to_string(options_.threads) + (options_.threads == 1 ? " thread" : " threads");
}

// ---- text ----

Result<std::vector<TokenId>> EngineImpl::tokenize(std::string_view text) const {
  if (!model_->tokenizer) return Status::not_found(options_.model_dir + "/tokenizer.json: the model has no tokenizer");
  return model_->tokenizer->encode(text);
}

std::string EngineImpl::detokenize(std::span<const TokenId> tokens) const {
  return model_->tokenizer ? model_->tokenizer->decode(tokens) : std::string();
}

Result<std::string> EngineImpl::apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  if (!model_->chat_template)
    return Status::not_found(options_.model_dir + "/tokenizer_config.json: chat_template: the model has none");
  ChatInput input;
  for (const ChatMessage& m : messages) input.messages.push_back({{"role", m.role}, {"content", m.content}});
  input.add_generation_prompt = add_generation_prompt;
  return model_->chat_template->render(chat_context(model_->chat_source, input), std::time(nullptr));
}

// ---- requests ----

Status EngineImpl::check_method(const char* what, const std::string& label, bool prefill) const {
  if (label.empty()) return {};
  std::string able;
  for (const MethodEntry& e : methods_) {
    if (e.method && !(prefill ? e.method->prefills() : e.method->decodes())) continue;
    if (e.label == label) return {};
    able += (able.empty() ? "" : ", ") + e.label;
  }
  return Status::invalid_argument(std::string(what) + " \"" + label + "\" is not loaded or cannot serve as one; loaded: " + able);
}

Status EngineImpl::check_request(const Request& r) const {
  FOVEA_TRY(check_sampling(r.sampling));
  if (r.prompt.empty()) return Status::invalid_argument("prompt: it has no tokens");
  for (TokenId id : r.prompt) {
    if (id < 0 || id >= model_->config.vocab_size)
      return Status::invalid_argument("prompt: token id " + std::to_string(id) + " is not in [0, " +
                                      std::to_string(model_->config.vocab_size) + ")");
  }
  const int64_t length = static_cast<int64_t>(r.prompt.size()) + (r.sampling.max_tokens > 0 ? 1 : 0);
  if (length > options_.max_model_len)
    return Status::invalid_argument("prompt: " + std::to_string(r.prompt.size()) + " tokens do not fit --max-model-len " +
                                    std::to_string(options_.max_model_len));
  if (blocks_->blocks_for(length) > blocks_->num_blocks())
    return Status::resource_exhausted("prompt: " + std::to_string(r.prompt.size()) + " tokens need " +
                                      std::to_string(blocks_->blocks_for(length)) + " KV blocks, --kv-cache-memory holds " +
                                      std::to_string(blocks_->num_blocks()));
  FOVEA_TRY(check_method("decode method", r.decode_method, false));
  FOVEA_TRY(check_method("prefill method", r.prefill_method, true));
  if (r.trace_mass && !device_->is_host()) return Status::unsupported("trace_mass: it needs --device cpu");
  if (r.trace_mass && info_.shape.kv_lora_rank > 0) return Status::unsupported("trace_mass: it needs a model with K and V in its cache, not MLA");
  if (r.budget_tokens < 0) return Status::invalid_argument("budget_tokens: " + std::to_string(r.budget_tokens) + " is negative");
  const std::string& decodes = r.decode_method.empty() ? options_.decode_method : r.decode_method;
  if (const Method* m = methods_[static_cast<size_t>(method_index(decodes))].method.get(); r.budget_tokens > 0 && m && m->trained())
    return Status::invalid_argument("budget_tokens: " + std::to_string(r.budget_tokens) + ": " + decodes +
                                    " reads what the model was trained to read, and no request's budget (dsa[topk=...] reads less)");
  if (r.hold && (r.sampling.n != 1)) return Status::invalid_argument("hold: needs n = 1, not " + std::to_string(r.sampling.n));
  if (r.sampling.max_tokens == 0 && r.sampling.n != 1) return Status::invalid_argument("max_tokens: 0 needs n = 1");
  return {};
}

Result<RequestId> EngineImpl::submit(Request request) {
  FOVEA_TRY(check_request(request));
  std::lock_guard<std::mutex> lock(mutex_);
  if (inbox_.size() >= kInboxMax) return Status::busy("the queue holds " + std::to_string(kInboxMax) + " requests: try again later");
  const RequestId id{next_request_++};
  inbox_.push_back({id, std::move(request), clock_.now_s()});
  return id;
}

void EngineImpl::abort(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  aborts_.push_back(id);
}

void EngineImpl::release(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  releases_.push_back(id);
}

int64_t EngineImpl::computed_tokens(RequestId id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = progress_.find(id);
  return it == progress_.end() ? 0 : it->second;
}

EngineStats EngineImpl::stats() const {
  EngineStats s;
  s.steps = steps_;
  s.blocks_total = blocks_->num_blocks();
  s.blocks_free = blocks_->num_free();
  s.blocks_in_use = s.blocks_total - s.blocks_free;
  s.block_bytes = kv_->bytes_per_block();
  const auto usage = blocks_->usage();
  s.slots_allocated = usage.allocated_slots;
  s.slots_used = usage.used_slots;
  s.swapped_bytes = int64_t{swap_->num_slots() - blocks_->num_swap_free()} * kv_->bytes_per_block();
  s.preemptions = scheduler_->stats().preempted_recompute + scheduler_->stats().preempted_swap;
  return s;
}

}  // namespace fovea
